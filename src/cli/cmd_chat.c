/* cmd_chat.c - a conversation on the terminal.
 *
 * The model runs in the engine thread, as under the server; this thread reads lines and prints tokens. Ctrl-C stops an answer,
 * and clears a line that is being typed; Ctrl-D ends the program. */
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/serve_model.h"
#include "sched/sched.h"
#include "server/answer.h"
#include "server/prepare.h"
#include "json/json.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHAT_TEXT_MAX    ((size_t)64 << 20)
#define CHAT_HISTORY_MAX 1000

struct chat_options {
    struct load_options load;
    const char *system, *chat_template;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p;
};

struct chat_message {
    char *role; /* borrowed constant */
    char *text;
};

struct chat {
    const struct chat_options *o;
    struct serve_model model;
    struct server_model served;
    struct sched *sched;
    EditLine *el;
    History *history;
    bool is_terminal, has_colour;
    const char *prompt; /* of the line being read */
    char *system;
    struct buf messages; /* struct chat_message each */
    req_id next_id;
    struct sched_finished last; /* of the newest answer */
};

static volatile sig_atomic_t chat_interrupted;

static void chat_on_interrupt(int number)
{
    chat_interrupted = 1;
}

/* --- conversation --- */

static void chat_add(struct chat *c, char *role, const char *text)
{
    struct chat_message m = { role, mem_strdup(MEM_CAT_BASE, text) };
    buf_add(&c->messages, &m, sizeof(m));
}

static size_t chat_count(const struct chat *c)
{
    return c->messages.len / sizeof(struct chat_message);
}

static struct chat_message *chat_at(const struct chat *c, size_t i)
{
    return (struct chat_message *)(void *)c->messages.data + i;
}

static void chat_drop_last(struct chat *c)
{
    mem_free(MEM_CAT_BASE, chat_at(c, chat_count(c) - 1)->text);
    c->messages.len -= sizeof(struct chat_message);
}

static void chat_reset(struct chat *c)
{
    while (chat_count(c) > 0)
        chat_drop_last(c);
}

static void chat_write_message(struct json_writer *w, const char *role, const char *text)
{
    json_begin_object(w);
    json_field_str(w, "role", role);
    json_field_str(w, "content", text);
    json_end_object(w);
}

/* The request that a client of the server would send. */
static void chat_write_request(const struct chat *c, struct buf *out)
{
    const struct chat_options *o = c->o;
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_array(&w, "messages");
    if (c->system && *c->system)
        chat_write_message(&w, "system", c->system);
    for (size_t i = 0; i < chat_count(c); i++)
        chat_write_message(&w, chat_at(c, i)->role, chat_at(c, i)->text);
    json_end_array(&w);
    const struct {
        const char *name;
        double value;
    } numbers[] = { { "temperature", o->temperature },
                    { "top_p", o->top_p },
                    { "min_p", o->min_p } };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        json_key(&w, numbers[i].name);
        json_double(&w, numbers[i].value); /* NAN becomes null: not said */
    }
    const struct {
        const char *name;
        int64_t value;
    } integers[] = { { "top_k", o->top_k }, { "seed", o->seed }, { "max_tokens", o->max_tokens } };
    for (size_t i = 0; i < ARRAY_LEN(integers); i++) {
        json_key(&w, integers[i].name);
        if (integers[i].value < 0) /* not said */
            json_null(&w);
        else
            json_int(&w, integers[i].value);
    }
    json_end_object(&w);
}

/* --- one answer --- */

static void chat_print(const struct buf *text)
{
    fwrite(text->data, 1, text->len, stdout);
    fflush(stdout);
}

/* Print the answer as it comes and keep it in `whole`. */
static void chat_follow(struct chat *c, req_id id, struct buf *whole)
{
    struct answer a;
    struct buf piece;
    struct sched_event ev;
    bool is_over = false;
    answer_init(&a, c->served.tokenizer, false, 0);
    buf_init(&piece, MEM_CAT_BASE, CHAT_TEXT_MAX);
    while (!is_over) {
        if (chat_interrupted) {
            chat_interrupted = 0;
            (void)!sched_cancel(c->sched, id);
        }
        if (sched_next_event(c->sched, &ev, 100000) != ERR_OK || ev.id != id)
            continue;
        buf_reset(&piece);
        if (ev.kind == SCHED_EVENT_TOKEN) {
            answer_add(&a, &ev.token.token);
            answer_show(&a, ev.token.text_safe, false, &piece);
        } else {
            is_over = true;
            c->last = ev.finished;
            answer_show(&a, ev.finished.text_safe, true, &piece);
        }
        chat_print(&piece);
        buf_add(whole, piece.data, piece.len);
    }
    answer_release(&a);
    buf_release(&piece);
}

static void chat_say(const struct chat *c, const char *text)
{
    fprintf(stderr, "%s%s%s\n", c->has_colour ? "\x1b[33m" : "", text,
            c->has_colour ? "\x1b[0m" : "");
}

static void chat_end_of_answer(const struct chat *c)
{
    printf("%s\n", c->has_colour ? "\x1b[0m" : "");
    if (c->last.finish == FINISH_ERROR && c->last.err.code == ERR_CANCELLED)
        chat_say(c, "(stopped)");
    else if (c->last.finish == FINISH_ERROR)
        chat_say(c, c->last.err.text);
    else if (c->last.finish == FINISH_LENGTH)
        chat_say(c, "(the limit is reached: --max-tokens, or the context is full: /reset)");
}

/* Ask with the conversation as it is. On failure the last message is taken back. */
static void chat_ask(struct chat *c)
{
    struct prepare_context ctx = { .model = &c->served, .model_id = "chat" };
    struct server_config config = { .now = serve_model_now };
    struct buf body, whole;
    struct err err;
    uint64_t seed = 0;
    server_sampling_unset(&config.sampling);
    ctx.config = &config;
    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        seed = (uint64_t)clock_us();
    buf_init(&body, MEM_CAT_BASE, CHAT_TEXT_MAX);
    buf_init(&whole, MEM_CAT_BASE, CHAT_TEXT_MAX);
    chat_write_request(c, &body);
    const struct prepare_input in = {
        .kind = PREPARE_CHAT, .body = body.data, .n = body.len, .seed = seed
    };
    struct prepared *p = prepare_request(&ctx, &in);
    if (p->error.status != 0) {
        chat_say(c, p->error.text);
        chat_drop_last(c);
        goto out;
    }
    req_id id = p->requests[0]->id = p->requests[0]->leader = c->next_id++;
    if (sched_submit(c->sched, p->requests, 1, &err) != ERR_OK) {
        chat_say(c, err.text);
        chat_drop_last(c);
        goto out;
    }
    p->requests[0] = NULL;
    chat_interrupted = 0;
    if (c->has_colour)
        printf("\x1b[32m");
    chat_follow(c, id, &whole);
    chat_end_of_answer(c);
    chat_add(c, "assistant", whole.data);
out:
    prepare_free(p);
    buf_release(&body);
    buf_release(&whole);
}

/* --- commands --- */

static void chat_help(void)
{
    printf(
        "  /system TEXT  set the system message (without text: show it)\n"
        "  /reset        forget the conversation\n"
        "  /stats        tokens and speed of the last answer\n"
        "  /exit         leave (or Ctrl-D)\n"
        "A line that ends in a backslash goes on; \"\"\" begins and ends a text of several lines.\n"
        "Ctrl-C stops an answer.\n");
}

static void chat_stats(const struct chat *c)
{
    const struct sched_finished *f = &c->last;
    double prompt_s = (double)f->prefill_us / 1e6, decode_s = (double)f->decode_us / 1e6;
    printf("  prompt %d tokens, %.2f s (%.1f tokens/s); answer %d tokens, %.2f s (%.1f tokens/s)\n",
           f->n_prompt, prompt_s, prompt_s > 0 ? f->n_prompt / prompt_s : 0, f->n_tokens, decode_s,
           decode_s > 0 ? f->n_tokens / decode_s : 0);
    printf("  context %d of %d tokens\n", f->n_prompt + f->n_tokens, c->served.engine->info.n_ctx);
}

/* A line that begins with a slash. False: leave. */
static bool chat_command(struct chat *c, const char *line)
{
    if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0)
        return false;
    if (strcmp(line, "/help") == 0) {
        chat_help();
    } else if (strcmp(line, "/reset") == 0) {
        chat_reset(c);
        printf("  a new conversation\n");
    } else if (strcmp(line, "/stats") == 0) {
        chat_stats(c);
    } else if (strcmp(line, "/system") == 0) {
        printf("  %s\n", c->system && *c->system ? c->system : "(none)");
    } else if (strncmp(line, "/system ", 8) == 0) {
        mem_free(MEM_CAT_BASE, c->system);
        c->system = mem_strdup(MEM_CAT_BASE, line + 8);
    } else {
        chat_say(c, "unknown command; /help lists them");
    }
    return true;
}

/* --- lines in --- */

static char *chat_prompt(EditLine *el)
{
    struct chat *c;
    el_get(el, EL_CLIENTDATA, &c);
    return (char *)(uintptr_t)c->prompt;
}

/* What Ctrl-C does while a line is typed: drop the line. */
static unsigned char chat_on_clear(EditLine *el, int ch)
{
    chat_interrupted = 1;
    return CC_NEWLINE;
}

/* Append a line from a pipe or file. False at the end. */
static bool chat_read_plain(struct buf *out)
{
    char piece[4096];
    size_t start = out->len;
    while (fgets(piece, sizeof(piece), stdin)) {
        buf_add_str(out, piece);
        if (out->len > start && out->data[out->len - 1] == '\n') {
            out->data[--out->len] = '\0';
            return true;
        }
    }
    return out->len > start;
}

/* Append one line without its end. False at the end of the input. *is_cleared: Ctrl-C dropped it. */
static bool chat_read_line(struct chat *c, const char *prompt, struct buf *out, bool *is_cleared)
{
    int n = 0;
    *is_cleared = false;
    if (!c->el)
        return chat_read_plain(out);
    c->prompt = prompt;
    chat_interrupted = 0;
    const char *line = el_gets(c->el, &n);
    *is_cleared = chat_interrupted;
    chat_interrupted = 0;
    if (*is_cleared)
        printf("\n");
    if (!line || n <= 0)
        return *is_cleared;
    buf_add(out, line, (size_t)n - (line[n - 1] == '\n'));
    return true;
}

/* Read one message: a line, lines joined by backslashes, or a block between """. False at the end of the input. */
static bool chat_read(struct chat *c, struct buf *out)
{
    bool is_block = false, is_cleared;
    buf_reset(out);
    while (true) {
        size_t start = out->len;
        if (!chat_read_line(c, start == 0 && !is_block ? "> " : "... ", out, &is_cleared))
            return out->len > 0;
        if (is_cleared) {
            buf_reset(out);
            is_block = false;
            continue;
        }
        const char *line = out->data + start;
        size_t n = out->len - start;
        if (!is_block && start == 0 && strncmp(line, "\"\"\"", 3) == 0) {
            is_block = true;
            buf_drop(out, 3);
            line = out->data;
            n -= 3;
        }
        if (is_block && n >= 3 && strcmp(line + n - 3, "\"\"\"") == 0) {
            out->len -= 3;
            out->data[out->len] = '\0';
            return true;
        }
        if (!is_block && (n == 0 || line[n - 1] != '\\'))
            return true;
        if (!is_block)
            out->len--;
        if (out->len > 0)
            buf_add_char(out, '\n');
    }
}

/* $XDG_STATE_HOME/plumb/chat-history, made if need be. False: there is none. */
static bool chat_history_path(char *out, size_t n)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char dir[2048];
    if (state && *state == '/')
        snprintf(dir, sizeof(dir), "%s", state);
    else if (home && *home == '/')
        snprintf(dir, sizeof(dir), "%s/.local/state", home);
    else
        return false;
    snprintf(out, n, "%s/plumb/chat-history", dir);
    for (char *p = out + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        bool is_fine = mkdir(out, 0700) == 0 || errno == EEXIST;
        *p = '/';
        if (!is_fine)
            return false;
    }
    return true;
}

static void chat_open_terminal(struct chat *c)
{
    HistEvent ev;
    char path[4096];
    setlocale(LC_CTYPE, "");
    umask(077); /* the history holds what the user typed */
    c->el = el_init("plumb", stdin, stdout, stderr);
    if (!c->el)
        return;
    c->history = history_init();
    history(c->history, &ev, H_SETSIZE, CHAT_HISTORY_MAX);
    history(c->history, &ev, H_SETUNIQUE, 1);
    if (chat_history_path(path, sizeof(path)))
        history(c->history, &ev, H_LOAD, path);
    el_set(c->el, EL_CLIENTDATA, c);
    el_set(c->el, EL_PROMPT, chat_prompt);
    el_set(c->el, EL_EDITOR, "emacs");
    el_set(c->el, EL_HIST, history, c->history);
    el_set(c->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    /* libedit goes on reading after the first signal, so while a line is typed Ctrl-C is a key and not a signal. */
    el_set(c->el, EL_ADDFN, "drop-line", "drop the line", chat_on_clear);
    el_set(c->el, EL_BIND, "^C", "drop-line", NULL);
    el_set(c->el, EL_SETTY, "-d", "intr=", NULL);
}

static void chat_close_terminal(struct chat *c)
{
    HistEvent ev;
    char path[4096];
    if (!c->el)
        return;
    if (chat_history_path(path, sizeof(path)))
        history(c->history, &ev, H_SAVE, path);
    history_end(c->history);
    el_end(c->el);
}

static void chat_remember(struct chat *c, const char *text)
{
    HistEvent ev;
    if (c->history && !strchr(text, '\n'))
        history(c->history, &ev, H_ENTER, text);
}

static void chat_loop(struct chat *c)
{
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, CHAT_TEXT_MAX);
    while (chat_read(c, &text)) {
        if (strspn(text.data, " \t\n") == text.len)
            continue;
        chat_remember(c, text.data);
        if (text.data[0] == '/' && !strchr(text.data, '\n')) {
            if (!chat_command(c, text.data))
                break;
            continue;
        }
        chat_add(c, "user", text.data);
        chat_ask(c);
    }
    buf_release(&text);
}

/* --- start --- */

static enum err_code chat_load(void *arg, struct engine **out, struct err *err)
{
    struct chat *c = arg;
    enum err_code code = serve_model_open(&c->model, &c->served, err);
    *out = c->served.engine;
    return code;
}

static enum err_code chat_start(struct chat *c, struct err *err)
{
    const struct sched_config sc = {
        .max_waiting = 1, .max_stall_us = 1000000, .n_events = 256, .load = chat_load, .load_arg = c
    };
    struct sched_event ev;
    enum err_code code = sched_start(&sc, &c->sched, err);
    if (code != ERR_OK)
        return code;
    while (sched_next_event(c->sched, &ev, 1000000) != ERR_OK)
        if (chat_interrupted)
            _exit(130); /* the load cannot be stopped */
    if (ev.kind == SCHED_EVENT_FAILED) {
        *err = ev.err;
        return ev.err.code;
    }
    if (!c->served.chat_template)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s has no chat template: use plumb run --raw, or give --chat-template",
                       c->model.load.id);
    return ERR_OK;
}

static int chat_run(void *options)
{
    const struct chat_options *o = options;
    struct chat c = { .o = o, .next_id = 1 };
    struct sigaction interrupt = { .sa_handler =
                                       chat_on_interrupt }; /* no SA_RESTART: ends read() */
    struct err err;
    c.model.options = o->load;
    c.model.template_path = o->chat_template;
    c.model.max_rows = 1;
    c.system = mem_strdup(MEM_CAT_BASE, o->system ? o->system : "");
    c.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    c.has_colour = c.is_terminal && !getenv("NO_COLOR");
    buf_init(&c.messages, MEM_CAT_BASE, CHAT_TEXT_MAX);
    sigaction(SIGINT, &interrupt, NULL);
    enum err_code code = chat_start(&c, &err);
    if (code == ERR_OK) {
        if (c.is_terminal) {
            chat_open_terminal(&c);
            printf("%s, %d tokens of context. /help lists the commands.\n", c.model.load.id,
                   c.served.engine->info.n_ctx);
        }
        chat_loop(&c);
        chat_close_terminal(&c);
    }
    if (c.sched)
        sched_stop(c.sched);
    chat_reset(&c);
    buf_release(&c.messages);
    mem_free(MEM_CAT_BASE, c.system);
    serve_model_close(&c.model);
    return code == ERR_OK ? 0 : cli_fail("chat", &err);
}

static void chat_defaults(void *options)
{
    struct chat_options *o = options;
    o->max_tokens = o->top_k = o->seed = -1;
    o->temperature = o->top_p = o->min_p = NAN;
}

#define AT(member) offsetof(struct chat_options, member)

const struct cli_verb cmd_chat = {
    .name = "chat",
    .summary = "talk to a model on the terminal",
    .usage = "[--model M] [--system TEXT]",
    .flags =
        (const struct cli_flag[]){
            LOAD_FLAGS(struct chat_options, load),
            { "system", "TEXT", "system message", CLI_FLAG_STRING, AT(system), 0, 0 },
            { "chat-template", "FILE", "Jinja template instead of the model's own", CLI_FLAG_STRING,
              AT(chat_template), 0, 0 },
            { "max-tokens", "N", "longest answer; default until the model ends", CLI_FLAG_INT,
              AT(max_tokens), 1, 1 << 30 },
            { "temperature", "T", "0 = always the likeliest token; default the model's, else 0.7",
              CLI_FLAG_FLOAT, AT(temperature), 0, 100 },
            { "top-p", "P", "1 = off; default the model's, else off", CLI_FLAG_FLOAT, AT(top_p), 0,
              1 },
            { "top-k", "N", "0 = off; default the model's, else off", CLI_FLAG_INT, AT(top_k), 0,
              1 << 30 },
            { "min-p", "P", "0 = off; default the model's, else off", CLI_FLAG_FLOAT, AT(min_p), 0,
              1 },
            { "seed", "S", "same seed, same conversation; default a random one for each answer",
              CLI_FLAG_INT, AT(seed), 0, 9e15 },
            { 0 },
        },
    .options_bytes = sizeof(struct chat_options),
    .defaults = chat_defaults,
    .run = chat_run,
};
