/* response.c - the log of a response, and its way into the store and back. */
#include "server/response.h"
#include "base/utf8.h"
#include "server/response_int.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

#define RESPONSE_INPUT_KEY \
    "input" /* the one parameter of the function that a custom tool is made */

struct response *response_new(const char *id, unsigned flags)
{
    struct response *r = mem_alloc(MEM_CAT_SERVER, sizeof(*r));
    struct buf *const bufs[] = { &r->frame, &r->input, &r->custom, &r->log, &r->arguments };
    r->n_refs = 1;
    snprintf(r->id, sizeof(r->id), "%s", id);
    for (size_t i = 0; i < ARRAY_LEN(bufs); i++)
        buf_init(bufs[i], MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    buf_add_char(&r->log, (char)flags);
    return r;
}

struct response *response_ref(struct response *r)
{
    r->n_refs++;
    return r;
}

void response_unref(struct response *r)
{
    if (!r || --r->n_refs > 0)
        return;
    buf_release(&r->frame);
    buf_release(&r->input);
    buf_release(&r->custom);
    buf_release(&r->log);
    buf_release(&r->arguments);
    mem_free(MEM_CAT_SERVER, r);
}

unsigned response_flags(const struct response *r)
{
    return (unsigned char)r->log.data[0];
}

bool response_is_over(const struct response *r)
{
    return r->outcome.status >= RESPONSE_STATUS_COMPLETED;
}

bool response_has_failed(const struct response *r)
{
    return r->log.failed || r->frame.failed || r->input.failed || r->arguments.failed;
}

/* --- records --- */

static void response_add(struct response *r, enum response_record_kind kind, const char *text,
                         size_t n)
{
    size_t left = n;
    buf_add_char(&r->log, (char)kind);
    for (; left >= 0x80; left >>= 7)
        buf_add_char(&r->log, (char)(left | 0x80));
    buf_add_char(&r->log, (char)left);
    buf_add(&r->log, text, n);
}

bool response_next_record(const struct buf *log, size_t *at, struct response_record *out)
{
    size_t i = *at, n = 0;
    if (i >= log->len)
        return false;
    out->kind = (enum response_record_kind)log->data[i++];
    for (int shift = 0;; shift += 7) {
        if (i >= log->len || shift > 28)
            return false;
        unsigned char c = (unsigned char)log->data[i++];
        n |= (size_t)(c & 0x7f) << shift;
        if (c < 0x80)
            break;
    }
    if (n > log->len - i)
        return false;
    out->text = log->data + i;
    out->n = n;
    *at = i + n;
    return true;
}

void response_add_started(struct response *r)
{
    response_add(r, RESPONSE_RECORD_STARTED, "", 0);
}

void response_add_keep_alive(struct response *r)
{
    response_add(r, RESPONSE_RECORD_KEEP_ALIVE, "", 0);
}

void response_add_ids(struct response *r, const int32_t *ids, size_t n)
{
    struct json_writer w;
    struct buf text;
    buf_init(&text, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    json_writer_init(&w, &text);
    json_begin_array(&w);
    for (size_t i = 0; i < n; i++)
        json_int(&w, ids[i]);
    json_end_array(&w);
    if (n > 0)
        response_add(r, RESPONSE_RECORD_IDS, text.data, text.len);
    buf_release(&text);
}

void response_write_ids(const struct response *r, struct buf *out)
{
    struct response_record rec;
    for (size_t at = 1; response_next_record(&r->log, &at, &rec);)
        if (rec.kind == RESPONSE_RECORD_IDS)
            buf_add(out, rec.text, rec.n);
}

void response_add_cache(struct response *r, const struct buf *diagnosis, const struct buf *compared)
{
    if (diagnosis->len > 0)
        response_add(r, RESPONSE_RECORD_DIAGNOSIS, diagnosis->data, diagnosis->len);
    if (compared->len > 0)
        response_add(r, RESPONSE_RECORD_COMPARED, compared->data, compared->len);
}

/* --- custom tools: the model writes {"input": "..."}, the client gets what is in the string --- */

/* Where the string begins in text, behind {"input":"; 0 = not yet; -1 = the text is something else. */
static long response_find_input(const char *text, size_t n)
{
    static const char *const want[] = { "{", "\"" RESPONSE_INPUT_KEY "\"", ":", "\"" };
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        size_t len = strlen(want[i]);
        while (at < n && strchr(" \t\r\n", text[at]))
            at++;
        size_t there = n - at < len ? n - at : len;
        if (memcmp(text + at, want[i], there) != 0)
            return -1;
        if (there < len)
            return 0;
        at += len;
    }
    return (long)at;
}

/* The bytes of text that are whole escapes and characters of a JSON string, up to its end. */
static size_t response_whole_string(const char *text, size_t n, bool *is_end)
{
    size_t at = 0;
    *is_end = false;
    while (at < n) {
        size_t len = 1;
        if (text[at] == '"') {
            *is_end = true;
            break;
        }
        if (text[at] == '\\') {
            len = n - at > 1 && text[at + 1] == 'u' ? 6 : 2;
            /* half of a pair waits for the other half */
            if (len == 6 && n - at >= 6 && (text[at + 2] | 0x20) == 'd' &&
                strchr("89abAB", text[at + 3]))
                len = n - at > 6 && text[at + 6] != '\\' ? 6 : 12;
        }
        if (n - at < len)
            break;
        at += len;
    }
    return at;
}

/* text[0..n) is a piece of a JSON string: log what it means. */
static void response_add_unescaped(struct response *r, const char *text, size_t n)
{
    struct json_doc doc = { 0 };
    struct buf quoted;
    if (n == 0)
        return;
    buf_init(&quoted, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    buf_add_char(&quoted, '"');
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < 0x20) /* models write line feeds as they are */
            buf_printf(&quoted, "\\u%04x", text[i]);
        else
            buf_add_char(&quoted, text[i]);
    }
    buf_add_char(&quoted, '"');
    if (json_parse(&doc, quoted.data, quoted.len, LIMIT_REPLY_BYTES, NULL) == ERR_OK)
        response_add(r, RESPONSE_RECORD_ARGUMENTS, doc.root.text, doc.root.len);
    else /* an escape that is none: as it stands */
        response_add(r, RESPONSE_RECORD_ARGUMENTS, text, n);
    r->has_custom_text = true;
    json_doc_release(&doc);
    buf_release(&quoted);
}

/* The first byte that is not logged is within the string once has_custom_text is set. */
static void response_add_custom(struct response *r, const char *text, size_t n)
{
    struct buf *b = &r->arguments;
    bool is_end;
    buf_add(b, text, n);
    if (!r->has_custom_text) {
        long at = response_find_input(b->data, b->len);
        if (at <= 0)
            return;
        buf_drop(b, (size_t)at);
        r->has_custom_text = true;
    }
    if (!r->is_in_custom) /* behind its end */
        return;
    size_t whole = response_whole_string(b->data, b->len, &is_end);
    response_add_unescaped(r, b->data, whole);
    buf_drop(b, whole);
    if (is_end)
        r->is_in_custom = false;
}

/* Arguments of another shape: the one string in them, else all of them as they stand. */
static void response_end_custom(struct response *r, const struct json *arguments)
{
    const struct buf *b = &r->arguments;
    if (json_is(arguments, JSON_TYPE_OBJECT) && arguments->n == 1 &&
        json_is(&arguments->members[0].value, JSON_TYPE_STRING))
        response_add(r, RESPONSE_RECORD_ARGUMENTS, arguments->members[0].value.text,
                     arguments->members[0].value.len);
    else
        response_add(r, RESPONSE_RECORD_ARGUMENTS, b->data, b->len);
}

/* Whether its arguments are whole decides: an answer that was cut ends its calls, too. */
static void response_end_call(struct response *r)
{
    struct json_doc doc = { 0 };
    bool is_whole =
        json_parse(&doc, r->arguments.data, r->arguments.len, LIMIT_REPLY_BYTES, NULL) == ERR_OK;
    if (r->is_custom && r->has_custom_text)
        is_whole = !r->is_in_custom;
    else if (r->is_custom)
        response_end_custom(r, &doc.root);
    if (is_whole)
        response_add(r, RESPONSE_RECORD_END, "", 0);
    r->is_custom = false;
    json_doc_release(&doc);
}

/* --- parts --- */

static bool response_is_custom(const struct response *r, const char *name)
{
    char line[160];
    snprintf(line, sizeof(line), "\n%s\n", name);
    return strstr(r->custom.data, line) != NULL;
}

static void response_begin_call(struct response *r, const struct part *p)
{
    struct buf text;
    bool is_custom = response_is_custom(r, p->name);
    buf_init(&text, MEM_CAT_SERVER, 4096);
    buf_add(&text, p->id, strlen(p->id) + 1);
    buf_add_str(&text, p->name);
    response_add(r, is_custom ? RESPONSE_RECORD_CUSTOM : RESPONSE_RECORD_FUNCTION, text.data,
                 text.len);
    buf_release(&text);
    buf_reset(&r->arguments);
    r->is_custom = r->is_in_custom = is_custom;
    r->has_custom_text = false;
}

void response_add_part(struct response *r, const struct part *p, const struct buf *logprobs)
{
    switch (p->kind) {
    case PART_REASONING:
        if (p->n > 0)
            response_add(r, RESPONSE_RECORD_REASONING, p->text, p->n);
        break;
    case PART_CONTENT:
        if (logprobs && logprobs->len > 0)
            response_add(r, RESPONSE_RECORD_LOGPROBS, logprobs->data, logprobs->len);
        if (p->n > 0 || (logprobs && logprobs->len > 0))
            response_add(r, RESPONSE_RECORD_CONTENT, p->text, p->n);
        break;
    case PART_CALL_BEGIN:
        response_begin_call(r, p);
        break;
    case PART_CALL_ARGUMENTS:
        if (r->is_custom) {
            response_add_custom(r, p->text, p->n);
        } else {
            buf_add(&r->arguments, p->text, p->n);
            response_add(r, RESPONSE_RECORD_ARGUMENTS, p->text, p->n);
        }
        break;
    case PART_CALL_END:
        response_end_call(r);
        break;
    }
}

/* --- the store --- */

static void response_write_outcome(const struct response_outcome *o, struct buf *out)
{
    const struct {
        const char *name;
        int64_t v;
    } numbers[] = {
        { "status", o->status },
        { "completed", o->completed_s },
        { "has_usage", o->has_usage },
        { "input", o->input_tokens },
        { "cached", o->cached_tokens },
        { "output", o->output_tokens },
        { "reasoning", o->reasoning_tokens },
    };
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        json_field_int(&w, numbers[i].name, numbers[i].v);
    }
    json_field_str(&w, "code", o->error_code);
    json_field_str(&w, "text", o->error_text);
    json_end_object(&w);
}

void response_to_row(const struct response *r, struct store_row *row)
{
    memcpy(row->id, r->id, sizeof(row->id));
    memcpy(row->previous, r->previous, sizeof(row->previous));
    row->created_s = r->created_s;
    row->status = response_is_over(r) ? STORE_STATUS_OVER : STORE_STATUS_RUNNING;
    buf_add(&row->frame, r->frame.data, r->frame.len);
    buf_add(&row->input, r->input.data, r->input.len);
    buf_add(&row->log, r->log.data, r->log.len);
    response_write_outcome(&r->outcome, &row->outcome);
}

static enum err_code response_read_outcome(const struct json *v, struct response_outcome *o,
                                           struct err *err)
{
    const struct json *code = json_get(v, "code"), *text = json_get(v, "text");
    int64_t status = 0, has_usage = 0;
    const struct {
        const char *name;
        int64_t max, *out;
    } numbers[] = {
        { "status", RESPONSE_STATUS_CANCELLED, &status },
        { "completed", INT64_MAX, &o->completed_s },
        { "has_usage", 1, &has_usage },
        { "input", INT64_MAX, &o->input_tokens },
        { "cached", INT64_MAX, &o->cached_tokens },
        { "output", INT64_MAX, &o->output_tokens },
        { "reasoning", INT64_MAX, &o->reasoning_tokens },
    };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        enum err_code rc = json_to_int(json_get(v, numbers[i].name), numbers[i].name, 0,
                                       numbers[i].max, numbers[i].out, err);
        if (rc != ERR_OK)
            return rc;
    }
    if (!json_is(code, JSON_TYPE_STRING) || !json_is(text, JSON_TYPE_STRING))
        return err_set(err, ERR_INVALID, "no error code");
    o->status = (enum response_status)status;
    o->has_usage = has_usage != 0;
    snprintf(o->error_code, sizeof(o->error_code), "%s", code->text);
    snprintf(o->error_text, sizeof(o->error_text), "%s", text->text);
    return ERR_OK;
}

static void response_move(struct buf *to, struct buf *from)
{
    struct buf empty = *to;
    *to = *from;
    *from = empty;
}

void response_interrupt(struct response *r)
{
    r->outcome.status = RESPONSE_STATUS_FAILED;
    snprintf(r->outcome.error_code, sizeof(r->outcome.error_code), "server_error");
    snprintf(r->outcome.error_text, sizeof(r->outcome.error_text),
             "the server ended while this response was running");
}

struct response *response_from_row(struct store_row *row, struct err *err)
{
    struct json_doc doc = { 0 };
    struct response *r = response_new(row->id, 0);
    enum err_code code = json_parse(&doc, row->outcome.data, row->outcome.len, 1 << 20, err);
    if (code == ERR_OK)
        code = response_read_outcome(&doc.root, &r->outcome, err);
    json_doc_release(&doc);
    if (code == ERR_OK && row->log.len == 0)
        code = err_set(err, ERR_INVALID, "the log is empty");
    if (code != ERR_OK) {
        response_unref(r);
        return NULL;
    }
    memcpy(r->previous, row->previous, sizeof(r->previous));
    r->created_s = row->created_s;
    response_move(&r->frame, &row->frame);
    response_move(&r->input, &row->input);
    response_move(&r->log, &row->log);
    if (row->is_orphan && !response_is_over(r))
        response_interrupt(r);
    return r;
}
