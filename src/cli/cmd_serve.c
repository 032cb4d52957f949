/* cmd_serve.c - the HTTP server over one model. */
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "cli/api_keys.h"
#include "cli/cli.h"
#include "cli/load_template.h"
#include "cli/serve_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct serve_options {
    struct load_options load;
    const char *host, *allow_host, *cors_origin, *alias, *chat_template, *log, *trace;
    const char *api_key_file, *tls_cert, *tls_key;
    int64_t port, rows, max_body, max_waiting, max_stall_ms, drain_seconds, wedged_seconds;
    int64_t grammar_cache, store_bytes, store_days, prompt_cache, ssd_cache_max;
    int64_t checkpoint, journal_bytes, resume_ttl;
    const char *speculate, *state_dir, *ssd_cache;
    bool strict_model, metrics_public, insecure_listen, no_store, hoist_volatile;
    struct server_sampling sampling;
};

static void serve_defaults(void *options)
{
    struct serve_options *o = options;
    o->host = "127.0.0.1";
    o->port = 8080;
    o->rows = 16;
    o->drain_seconds = -1;
    o->prompt_cache = -1;
    o->speculate = "auto";
    o->ssd_cache_max = (int64_t)20 << 30;
    server_sampling_unset(&o->sampling);
}

static enum err_code serve_load(void *arg, struct server_model *out, struct err *err)
{
    return serve_model_open(arg, out, err);
}

static void serve_ready(void *arg, const char *url)
{
    const struct serve_model *m = arg;
    printf("serving %s at %s\n", m->load.id, url);
    fflush(stdout);
}

/* Where responses are kept, into out; NULL where they are not. */
static const char *serve_state_dir(const struct serve_options *o, struct buf *out)
{
    struct err err;
    if (o->no_store || o->state_dir)
        return o->no_store ? NULL : o->state_dir;
    if (file_state_dir(getenv("XDG_STATE_HOME"), getenv("HOME"), out, &err) == ERR_OK)
        return out->data;
    log_warn("serve", "%s; responses are not kept", err.text);
    return NULL;
}

/* Where records of generations are, into out; NULL where none are asked for. They are kept with --no-store, too. */
static enum err_code serve_journal_dir(const struct serve_options *o, struct buf *out,
                                       const char **dir, struct err *err)
{
    *dir = o->state_dir ? o->state_dir : o->ssd_cache;
    if (o->checkpoint == 0 || *dir)
        return ERR_OK;
    if (file_state_dir(getenv("XDG_STATE_HOME"), getenv("HOME"), out, err) != ERR_OK)
        return err_set(err, ERR_INVALID,
                       "--generation-checkpoint needs a place for its records: give --state-dir");
    *dir = out->data;
    return ERR_OK;
}

/* Where sessions are saved, into out; NULL where nothing says: saving one is refused then. */
static const char *serve_session_dir(const struct serve_options *o, struct buf *out)
{
    struct err err;
    if (o->state_dir || o->ssd_cache)
        return o->state_dir ? o->state_dir : o->ssd_cache;
    bool is_there = file_state_dir(getenv("XDG_STATE_HOME"), getenv("HOME"), out, &err) == ERR_OK;
    return is_there ? out->data : NULL;
}

#define SERVE_DRAFT "draft:"

/* The model that --speculate names, or NULL. */
static const char *serve_draft_model(const struct serve_options *o)
{
    return strncmp(o->speculate, SERVE_DRAFT, strlen(SERVE_DRAFT)) == 0
               ? o->speculate + strlen(SERVE_DRAFT)
               : NULL;
}

static enum err_code serve_check_speculate(const struct serve_options *o, struct err *err)
{
    const char *how = o->speculate, *path = serve_draft_model(o);
    if (strcmp(how, "auto") == 0 || strcmp(how, "off") == 0 || strcmp(how, "ngram") == 0 ||
        strcmp(how, "mtp") == 0 || (path && *path))
        return ERR_OK;
    return err_set(err, ERR_INVALID,
                   "--speculate: '%s' is not auto, off, ngram, mtp or draft:MODEL", how);
}

/* A server that loses its device sooner than this after its start has a reason that a new start would find again. */
#define SERVE_AGAIN_US 60000000

static int serve_run(void *options)
{
    const struct serve_options *o = options;
    struct serve_model m = { .options = o->load,
                             .template_path = o->chat_template,
                             .max_rows = (int32_t)o->rows,
                             .keep = { .speculates = strcmp(o->speculate, "off") != 0,
                                       .draft_model = serve_draft_model(o),
                                       .needs_head = strcmp(o->speculate, "mtp") == 0,
                                       .bytes =
                                           o->prompt_cache < 0 ? RUNNER_KEEP_ALL : o->prompt_cache,
                                       .dir = o->ssd_cache,
                                       .disk_bytes = o->ssd_cache_max } };
    m.options.wants_head = m.keep.needs_head || strcmp(o->speculate, "auto") == 0;
    struct server_config config = {
        .host = o->host,
        .port = (int)o->port,
        .allow_hosts = o->allow_host,
        .cors_origins = o->cors_origin,
        .is_metrics_public = o->metrics_public,
        .is_insecure_listen = o->insecure_listen,
        .tls_cert = o->tls_cert,
        .tls_key = o->tls_key,
        .alias = o->alias,
        .is_model_strict = o->strict_model,
        .hoists_volatile = o->hoist_volatile,
        .grammar_bytes = o->grammar_cache,
        .max_body = o->max_body,
        .drain_seconds = o->drain_seconds,
        .max_waiting = (int32_t)o->max_waiting,
        .max_stall_ms = o->max_stall_ms,
        .wedged_seconds = o->wedged_seconds,
        .store_bytes = o->store_bytes,
        .store_days = o->store_days,
        .checkpoint = (int32_t)o->checkpoint,
        .journal_bytes = o->journal_bytes,
        .resume_ttl_s = o->resume_ttl,
        .sampling = o->sampling,
        .now = serve_model_now,
        .load = serve_load,
        .load_arg = &m,
        .ready = serve_ready,
        .arg = &m,
    };
    struct api_keys keys = { 0 };
    struct err err;
    struct buf state, journal, sessions;
    int64_t now, start_us = clock_us();
    if (load_template_now(&now, &err) != ERR_OK) /* a bad SOURCE_DATE_EPOCH is said at once */
        return cli_fail("serve", &err);
    if (serve_check_speculate(o, &err) != ERR_OK)
        return cli_fail("serve", &err);
    if (o->log)
        log_enable(o->log);
    if (api_keys_open(&keys, o->api_key_file, &err) != ERR_OK)
        return cli_fail("serve", &err);
    config.api_keys = keys.items;
    config.n_api_keys = keys.n;
    if (o->trace && trace_open(o->trace, &err) != ERR_OK)
        return cli_fail("serve", &err);
    buf_init(&state, MEM_CAT_BASE, 4096);
    buf_init(&journal, MEM_CAT_BASE, 4096);
    buf_init(&sessions, MEM_CAT_BASE, 4096);
    config.session_dir = serve_session_dir(o, &sessions);
    config.state_dir = serve_state_dir(o, &state);
    enum err_code code = serve_journal_dir(o, &journal, &config.journal_dir, &err);
    if (code == ERR_OK)
        code = server_run(&config, &err);
    buf_release(&state);
    buf_release(&journal);
    buf_release(&sessions);
    trace_close();
    if (code == ERR_CANCELLED ||
        code == ERR_TIMEOUT) /* a thread still runs: nothing may be freed */
        _exit(code == ERR_CANCELLED ? 0 : cli_fail("serve", &err));
    api_keys_close(&keys);
    serve_model_close(&m);
    if (code == ERR_LOST && clock_us() - start_us >= SERVE_AGAIN_US) {
        log_warn("serve", "%s; the server starts anew", err.text);
        return CLI_AGAIN;
    }
    return code == ERR_OK ? 0 : cli_fail("serve", &err);
}

#define AT(member) offsetof(struct serve_options, member)

const struct cli_verb cmd_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP: OpenAI's chat and completions",
    .usage = "[--model M] [--host 127.0.0.1] [--port 8080]",
    .flags =
        (const struct cli_flag[]){
            LOAD_FLAGS(struct serve_options, load),
            { "host", "ADDRESS", "address to listen on; default 127.0.0.1", CLI_FLAG_STRING,
              AT(host), 0, 0 },
            { "port", "N", "port to listen on; 0 = any free one; default 8080", CLI_FLAG_INT,
              AT(port), 0, 65535 },
            { "alias", "NAME", "name of the model in the API; default its file's", CLI_FLAG_STRING,
              AT(alias), 0, 0 },
            { "strict-model", NULL, "answer 404 to requests for a model of another name",
              CLI_FLAG_BOOL, AT(strict_model), 0, 0 },
            { "allow-host", "NAMES", "more names that Host may have, comma-separated",
              CLI_FLAG_STRING, AT(allow_host), 0, 0 },
            { "cors-origin", "URLS",
              "web pages that may use the server, comma-separated origins; '*' where keys are "
              "asked for",
              CLI_FLAG_STRING, AT(cors_origin), 0, 0 },
            { "api-key-file", "FILE",
              "keys of which requests must have one, one a line; PLUMB_API_KEY is one more",
              CLI_FLAG_STRING, AT(api_key_file), 0, 0 },
            { "metrics-public", NULL, "/metrics asks for no key", CLI_FLAG_BOOL, AT(metrics_public),
              0, 0 },
            { "insecure-listen", NULL, "let --host reach beyond this machine without a key",
              CLI_FLAG_BOOL, AT(insecure_listen), 0, 0 },
            { "tls-cert", "FILE", "speak TLS: certificate and those that lead to its root, PEM",
              CLI_FLAG_STRING, AT(tls_cert), 0, 0 },
            { "tls-key", "FILE", "private key of --tls-cert, PEM", CLI_FLAG_STRING, AT(tls_key), 0,
              0 },
            { "chat-template", "FILE", "Jinja template instead of the model's own", CLI_FLAG_STRING,
              AT(chat_template), 0, 0 },
            { "rows", "N", "answers generated at a time; default 16", CLI_FLAG_INT, AT(rows), 1,
              256 },
            { "prompt-cache", "SIZE",
              "most of the cache that may keep finished prompts and answers; 0 = none; default "
              "all that no answer needs",
              CLI_FLAG_SIZE, AT(prompt_cache), 0, 1e15 },
            { "ssd-cache", "DIR",
              "keep finished prompts and answers there, too: they are found after a restart",
              CLI_FLAG_STRING, AT(ssd_cache), 0, 0 },
            { "ssd-cache-max", "SIZE", "most bytes of the files in --ssd-cache; default 20G",
              CLI_FLAG_SIZE, AT(ssd_cache_max), 1 << 20, 1e15 },
            { "grammar-cache", "SIZE",
              "most memory of compiled grammars that are kept, with their masks; "
              "default 512M",
              CLI_FLAG_SIZE, AT(grammar_cache), 1 << 20, (int64_t)1 << 40 },
            { "hoist-volatile", NULL,
              "move a date, billing header or id at the head of a system prompt to the end of the "
              "last message, so that the rest can be kept; changes the prompt",
              CLI_FLAG_BOOL, AT(hoist_volatile), 0, 0 },
            { "speculate", "HOW",
              "guess next tokens and verify them together, where it pays: ngram (by what the text "
              "has said), mtp (also by the model's own head for multi-token prediction), "
              "draft:MODEL (also by a smaller model of the same vocabulary, or by a drafter that "
              "reads the model's states), auto (ngram, and mtp where the model has it) or off; "
              "default auto",
              CLI_FLAG_STRING, AT(speculate), 0, 0 },
            { "max-waiting", "N", "requests that may wait; more are refused (429); default 64",
              CLI_FLAG_INT, AT(max_waiting), 1, 4096 },
            { "max-stall-ms", "N",
              "longest time a running answer waits for another's prompt; default 250", CLI_FLAG_INT,
              AT(max_stall_ms), 1, 60000 },
            { "max-body", "SIZE", "largest request; default 32M", CLI_FLAG_SIZE, AT(max_body), 1024,
              1 << 30 },
            { "drain-seconds", "N", "time for running answers after SIGTERM; default 30",
              CLI_FLAG_INT, AT(drain_seconds), 0, 86400 },
            { "wedged-seconds", "N", "a step that runs longer makes /health say 503; default 120",
              CLI_FLAG_INT, AT(wedged_seconds), 1, 86400 },
            { "state-dir", "DIR",
              "where responses and sessions are kept; default ~/.local/state/plumb",
              CLI_FLAG_STRING, AT(state_dir), 0, 0 },
            { "no-store", NULL, "keep no responses", CLI_FLAG_BOOL, AT(no_store), 0, 0 },
            { "store-size", "SIZE", "most bytes of kept responses; default 256M", CLI_FLAG_SIZE,
              AT(store_bytes), 1 << 20, (int64_t)1 << 40 },
            { "store-days", "N", "responses unused for so long are dropped; default 30",
              CLI_FLAG_INT, AT(store_days), 1, 36500 },
            { "generation-checkpoint", "N",
              "keep records of running answers (in --state-dir or --ssd-cache), written every N "
              "tokens at most a "
              "second late, so that they can be resumed after a crash; default none",
              CLI_FLAG_INT, AT(checkpoint), 1, 1 << 20 },
            { "resume-ttl", "SECONDS",
              "a record that nobody makes or reads stays so long; default 3600", CLI_FLAG_INT,
              AT(resume_ttl), 1, 86400 * 365 },
            { "journal-max", "SIZE", "most bytes of those records; default 256M", CLI_FLAG_SIZE,
              AT(journal_bytes), 1 << 16, (int64_t)1 << 40 },
            { "trace", "FILE", "write what each request went through, for ui.perfetto.dev",
              CLI_FLAG_STRING, AT(trace), 0, 0 },
            { "temperature", "T", "where a request names none; default the model's, else 0.7",
              CLI_FLAG_FLOAT, AT(sampling.temperature), 0, 100 },
            { "top-p", "P", "where a request names none; default the model's, else off",
              CLI_FLAG_FLOAT, AT(sampling.top_p), 0, 1 },
            { "top-k", "N", "where a request names none; default the model's, else off",
              CLI_FLAG_INT, AT(sampling.top_k), 0, 1 << 30 },
            { "min-p", "P", "where a request names none; default the model's, else off",
              CLI_FLAG_FLOAT, AT(sampling.min_p), 0, 1 },
            { "log", "NAMES", "also print debug lines of these components: http,sched or all",
              CLI_FLAG_STRING, AT(log), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct serve_options),
    .defaults = serve_defaults,
    .run = serve_run,
};
