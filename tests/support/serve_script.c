/* serve_script.c - the server over the scripted engine (engine_script.h), a vocabulary of bytes and a small chat template: what the
 * HTTP tests and the socket fuzzer talk to.
 *
 * usage: serve_script [--NAME=VALUE]...   prints "listening URL" and "ready URL" to stdout; --fields and --metrics
 * print the table of request fields and that of metrics as Markdown and end; --styles FILE... prints, a JSON line for each template,
 * the ways of calling and thinking that are read off it. */
#include "base/file.h"
#include "base/fio.h"
#include "base/trace.h"
#include "cli/again.h"
#include "server/fields.h"
#include "server/limits.h"
#include "server/metrics.h"
#include "server/server.h"
#include "support/byte_vocab.h"
#include "support/engine_script.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct world {
    struct engine_script_config script;
    struct server_config config;
    const char *keys[8];
    long load_ms, load_fails, prepare_ms;
    long journal_dies_at, journal_hangs_at, journal_fails_at,
        journal_errno; /* file calls of the journal, from 1 */
    _Atomic long n_journal;
    const char *trace;
    const char *style;         /* text that the way of calling is inferred from */
    const char *template_text; /* NULL: the vocabulary's own */
    struct tokenizer *tokenizer;
    struct template *chat_template;
};

static enum err_code load(void *arg, struct server_model *out, struct err *err)
{
    struct world *w = arg;
    usleep((useconds_t)w->load_ms * 1000);
    if (w->load_fails)
        return err_set(err, ERR_NOT_FOUND, "no model, as asked");
    enum err_code code = byte_vocab_new(&w->tokenizer, err);
    const char *text = w->template_text ? w->template_text : byte_vocab_template_text;
    if (code == ERR_OK)
        code = template_parse("test", text, strlen(text), &w->chat_template, err);
    if (code != ERR_OK)
        return code;
    out->tokenizer = w->tokenizer;
    out->chat_template = w->chat_template;
    split_style_init(&out->style, w->style ? w->style : byte_vocab_template_text, w->tokenizer);
    out->engine = engine_script_new(&w->script);
    server_sampling_unset(&out->sampling);
    return ERR_OK;
}

/* Templates ask for the time while a chat request is prepared: what makes that slow. */
static int64_t slow_now(void *arg)
{
    const struct world *w = arg;
    usleep((useconds_t)w->prepare_ms * 1000);
    return 1764000000;
}

/* The so manieth file call of the journal fails, and all that follow; or it ends the process, or never comes back. */
static int journal_hook(void *arg, enum fio_op op, const char *path)
{
    struct world *w = arg;
    if (!strstr(path, "/generations"))
        return 0;
    long n = ++w->n_journal;
    if (n == w->journal_dies_at)
        raise(SIGKILL);
    while (n == w->journal_hangs_at)
        pause();
    return w->journal_fails_at > 0 && n >= w->journal_fails_at ? (int)w->journal_errno : 0;
}

static void say_listening(void *arg, const char *url)
{
    printf("listening %s\n", url);
    fflush(stdout);
}

static void say_ready(void *arg, const char *url)
{
    printf("ready %s\n", url);
    fflush(stdout);
}

static bool set_number(struct world *w, const char *name, long v)
{
    struct {
        const char *name;
        int32_t *i32;
        int64_t *i64;
        long *l;
    } rows[] = {
        { "ctx", &w->script.n_ctx, NULL, NULL },
        { "rows", &w->script.max_rows, NULL, NULL },
        { "step-rows", &w->script.max_step_rows, NULL, NULL },
        { "pages", &w->script.n_pages, NULL, NULL },
        { "keeps-ends", &w->script.keeps_ends, NULL, NULL },
        { "step-us", NULL, &w->script.step_us, NULL },
        { "prompt-us", NULL, &w->script.prompt_us, NULL },
        { "load-ms", NULL, NULL, &w->load_ms },
        { "load-fails", NULL, NULL, &w->load_fails },
        { "prepare-ms", NULL, NULL, &w->prepare_ms },
        { "journal-dies-at", NULL, NULL, &w->journal_dies_at },
        { "journal-hangs-at", NULL, NULL, &w->journal_hangs_at },
        { "journal-fails-at", NULL, NULL, &w->journal_fails_at },
        { "journal-errno", NULL, NULL, &w->journal_errno },
        { "shift", &w->script.shift, NULL, NULL },
        { "generation-checkpoint", &w->config.checkpoint, NULL, NULL },
        { "journal-bytes", NULL, &w->config.journal_bytes, NULL },
        { "resume-ttl", NULL, &w->config.resume_ttl_s, NULL },
        { "store-bytes", NULL, &w->config.store_bytes, NULL },
        { "store-days", NULL, &w->config.store_days, NULL },
        { "max-body", NULL, &w->config.max_body, NULL },
        { "head-seconds", &w->config.head_seconds, NULL, NULL },
        { "body-seconds", &w->config.body_seconds, NULL, NULL },
        { "idle-seconds", &w->config.idle_seconds, NULL, NULL },
        { "stall-seconds", &w->config.stall_seconds, NULL, NULL },
        { "keep-alive-ms", NULL, &w->config.keep_alive_ms, NULL },
        { "max-waiting", &w->config.max_waiting, NULL, NULL },
        { "drain-seconds", NULL, &w->config.drain_seconds, NULL },
        { "wedged-seconds", NULL, &w->config.wedged_seconds, NULL },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].name, name) != 0)
            continue;
        if (rows[i].i32)
            *rows[i].i32 = (int32_t)v;
        else if (rows[i].i64)
            *rows[i].i64 = v;
        else
            *rows[i].l = v;
        return true;
    }
    return false;
}

static bool set_flag(struct world *w, char *arg)
{
    char *eq = strchr(arg, '=');
    if (strcmp(arg, "--strict-model") == 0)
        return w->config.is_model_strict = true;
    if (strcmp(arg, "--metrics-public") == 0)
        return w->config.is_metrics_public = true;
    if (strcmp(arg, "--insecure-listen") == 0)
        return w->config.is_insecure_listen = true;
    if (strncmp(arg, "--", 2) != 0 || !eq)
        return false;
    *eq = '\0';
    const char *name = arg + 2;
    if (strcmp(name, "host") == 0)
        w->config.host = eq + 1;
    else if (strcmp(name, "allow-host") == 0)
        w->config.allow_hosts = eq + 1;
    else if (strcmp(name, "cors-origin") == 0)
        w->config.cors_origins = eq + 1;
    else if (strcmp(name, "api-key") == 0 && (size_t)w->config.n_api_keys < ARRAY_LEN(w->keys))
        w->keys[w->config.n_api_keys++] = eq + 1;
    else if (strcmp(name, "tls-cert") == 0)
        w->config.tls_cert = eq + 1;
    else if (strcmp(name, "tls-key") == 0)
        w->config.tls_key = eq + 1;
    else if (strcmp(name, "alias") == 0)
        w->config.alias = eq + 1;
    else if (strcmp(name, "state-dir") == 0)
        w->config.state_dir = eq + 1;
    else if (strcmp(name, "session-dir") == 0)
        w->config.session_dir = eq + 1;
    else if (strcmp(name, "journal-dir") == 0)
        w->config.journal_dir = eq + 1;
    else if (strcmp(name, "fingerprint") == 0)
        w->script.fingerprint = eq + 1;
    else if (strcmp(name, "style") == 0)
        w->style = eq + 1;
    else if (strcmp(name, "template") == 0)
        w->template_text = eq + 1;
    else if (strcmp(name, "trace") == 0)
        w->trace = eq + 1;
    else if (strcmp(name, "port") == 0)
        w->config.port = (int)strtol(eq + 1, NULL, 10);
    else
        return set_number(w, name, strtol(eq + 1, NULL, 10));
    return true;
}

static int print_table(void (*print)(struct buf *out))
{
    struct buf out;
    buf_init(&out, MEM_CAT_SERVER, 1 << 20);
    print(&out);
    fputs(out.data, stdout);
    buf_release(&out);
    return 0;
}

static void style_print(const struct split_style *style)
{
    struct buf out, opening;
    struct json_writer w;
    buf_init(&out, MEM_CAT_SERVER, 1 << 16);
    buf_init(&opening, MEM_CAT_SERVER, 1 << 16);
    split_style_opening(style, "get_weather", &opening);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    json_field_str(&w, "format", split_style_name(style));
    json_field_strn(&w, "opening", opening.data, opening.len);
    json_key(&w, "thought");
    if (style->thought) {
        json_begin_array(&w);
        json_str(&w, style->thought->open);
        json_str(&w, style->thought->close);
        json_end_array(&w);
    } else {
        json_null(&w);
    }
    json_end_object(&w);
    puts(out.data);
    buf_release(&out);
    buf_release(&opening);
}

static int print_styles(char **paths, int n)
{
    struct tokenizer *t = NULL;
    struct err err;
    BUG_ON(byte_vocab_new(&t, &err) != ERR_OK);
    for (int i = 0; i < n; i++) {
        struct split_style style;
        struct buf text;
        buf_init(&text, MEM_CAT_SERVER, 1 << 20);
        if (file_read(paths[i], &text, &err) != ERR_OK) {
            fprintf(stderr, "serve_script: %s\n", err.text);
            return 1;
        }
        split_style_init(&style, text.data, t);
        style_print(&style);
        buf_release(&text);
    }
    tokenizer_free(t);
    return 0;
}

int main(int argc, char **argv)
{
    struct world w = {
        .script = { .n_ctx = 8192, .max_rows = 1, .max_step_rows = 512 },
        .config = { .host = "127.0.0.1", .drain_seconds = -1 },
    };
    struct err err;
    if (argc == 2 && strcmp(argv[1], "--fields") == 0)
        return print_table(fields_print);
    if (argc == 2 && strcmp(argv[1], "--metrics") == 0)
        return print_table(metrics_print);
    if (argc > 1 && strcmp(argv[1], "--styles") == 0)
        return print_styles(argv + 2, argc - 2);
    for (int i = 1; i < argc; i++) {
        if (set_flag(&w, argv[i]))
            continue;
        fprintf(stderr, "serve_script: unknown flag '%s'\n", argv[i]);
        return 2;
    }
    if (w.journal_dies_at > 0 || w.journal_fails_at > 0 || w.journal_hangs_at > 0)
        fio_set_hook(journal_hook, &w);
    server_sampling_unset(&w.config.sampling);
    w.config.api_keys = w.keys;
    w.config.now = slow_now;
    w.config.now_arg = &w;
    w.config.load = load;
    w.config.load_arg = &w;
    w.config.listening = say_listening;
    w.config.ready = say_ready;
    enum err_code code = ERR_OK;
    if (w.trace)
        code = trace_open(w.trace, &err);
    if (code == ERR_OK)
        code = server_run(&w.config, &err);
    trace_close();
    if (code == ERR_CANCELLED || code == ERR_TIMEOUT) /* a thread still runs */
        _exit(code == ERR_CANCELLED ? 0 : 1);
    tokenizer_free(w.tokenizer);
    template_free(w.chat_template);
    if (code == ERR_OK && mem_bytes(MEM_CAT_REQUEST) + mem_bytes(MEM_CAT_SERVER) != 0)
        code = err_set(&err, ERR_STATE, "%lld and %lld bytes are still held",
                       (long long)mem_bytes(MEM_CAT_REQUEST), (long long)mem_bytes(MEM_CAT_SERVER));
    if (code == ERR_OK)
        return 0;
    fprintf(stderr, "serve_script: %s\n", err.text);
    if (code == ERR_LOST) /* as plumb serve, but at once */
        (void)again_run(argv, &err);
    return 1;
}
