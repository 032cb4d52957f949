#include "server/diagnosis.h"
#include "server/limits.h"

#include <stdio.h>
#include <string.h>

struct diagnosis *diagnosis_new(enum diagnosis_form form, bool tells_kept)
{
    struct diagnosis *d = mem_alloc(MEM_CAT_REQUEST, sizeof(*d));
    d->form = form;
    d->tells_kept = tells_kept;
    return d;
}

void diagnosis_free(struct diagnosis *d)
{
    if (!d)
        return;
    mem_free(MEM_CAT_REQUEST, d->ids);
    mem_free(MEM_CAT_REQUEST, d->starts);
    mem_free(MEM_CAT_REQUEST, d->origins);
    places_release(&d->places);
    mem_free(MEM_CAT_REQUEST, d);
}

void diagnosis_set_ids(struct diagnosis *d, const int32_t *ids, int32_t n)
{
    mem_free(MEM_CAT_REQUEST, d->ids);
    d->ids = mem_alloc(MEM_CAT_REQUEST, sizeof(*ids) * (size_t)(n + 1));
    memcpy(d->ids, ids, sizeof(*ids) * (size_t)n);
    d->n_ids = n;
}

/* How many bytes of the text the token takes. Where a tokenizer spells a text otherwise (a space in front, another normal form) its
 * bytes are looked for a little further on, so that an error does not add up. */
static size_t diagnosis_step(const struct tokenizer_str *piece, const char *text, size_t n)
{
    size_t len = piece->len < n ? piece->len : n;
    if (memcmp(piece->data, text, len) == 0)
        return len;
    if (len > 0 && piece->data[0] == ' ' && memcmp(piece->data + 1, text, len - 1) == 0)
        return len - 1;
    for (size_t skip = 1; skip <= 8 && skip + piece->len <= n; skip++)
        if (memcmp(piece->data, text + skip, piece->len) == 0)
            return skip + piece->len;
    return len;
}

void diagnosis_set_text(struct diagnosis *d, const struct tokenizer *t, const struct json *body,
                        const struct template_output *text)
{
    size_t at = 0;
    d->starts = mem_alloc(MEM_CAT_REQUEST, sizeof(*d->starts) * (size_t)(d->n_ids + 1));
    for (int32_t i = 0; i < d->n_ids; i++) {
        struct tokenizer_str piece = tokenizer_bytes(t, d->ids[i], true);
        d->starts[i] = (uint32_t)at;
        at += diagnosis_step(&piece, text->text.data + at, text->text.len - at);
    }
    places_find(&d->places, body, text->text.data, text->text.len, &text->caller);
}

/* --- writing --- */

static const char *diagnosis_reason(enum engine_miss_reason reason)
{
    static const char *const names[] = {
        [ENGINE_MISS_UNKNOWN] = "unknown", [ENGINE_MISS_WHOLE] = "whole",
        [ENGINE_MISS_ENDS] = "ends",       [ENGINE_MISS_DIFFERS] = "differs",
        [ENGINE_MISS_EMPTY] = "empty",     [ENGINE_MISS_GIVEN_UP] = "evicted",
        [ENGINE_MISS_STATE] = "state",     [ENGINE_MISS_NO_ROOM] = "no_room",
        [ENGINE_MISS_SCORED] = "scored",   [ENGINE_MISS_OFF] = "off",
    };
    return names[reason];
}

/* The ids' text, control tokens spelled out, at most DIAGNOSIS_TEXT_MAX bytes. */
static void diagnosis_text(struct json_writer *w, const char *name, const struct tokenizer *t,
                           const int32_t *ids, int32_t n)
{
    struct detok_stream s;
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    detok_stream_init(&s, t, false, true);
    for (int32_t i = 0; i < n; i++)
        detok_stream_push(&s, ids[i], &text);
    size_t len = text.len < DIAGNOSIS_TEXT_MAX ? text.len : DIAGNOSIS_TEXT_MAX;
    while (len > 0 && len < text.len && ((unsigned char)text.data[len] & 0xC0) == 0x80)
        len--;
    json_field_strn(w, name, text.data, len);
    buf_release(&text);
}

static void diagnosis_path(const struct diagnosis *d, int32_t tool, int32_t message, char *out,
                           size_t n)
{
    bool is_own = d->form == DIAGNOSIS_FORM_CHAT;
    int32_t from = message >= 0 && message < d->n_origins ? d->origins[message] : message;
    if (d->form == DIAGNOSIS_FORM_PROMPT)
        snprintf(out, n, "prompt");
    else if (tool >= 0)
        snprintf(out, n, is_own ? "tools[%d]" : "tools", tool);
    else if (message < 0)
        snprintf(out, n, "template");
    else if (is_own)
        snprintf(out, n, "messages[%d]", message);
    else if (from == DIAGNOSIS_FROM_PREVIOUS)
        snprintf(out, n, "previous_response_id");
    else if (d->form == DIAGNOSIS_FORM_MESSAGES)
        snprintf(out, n, from == DIAGNOSIS_FROM_SYSTEM ? "system" : "messages[%d]", from);
    else
        snprintf(out, n, from == DIAGNOSIS_FROM_SYSTEM ? "instructions" : "input[%d]", from);
}

/* Members that say where the token stands. */
static void diagnosis_place(struct json_writer *w, const struct diagnosis *d, int32_t token)
{
    char path[48];
    int32_t tool = -1, message = -1;
    bool is_template = false;
    if (d->starts && token < d->n_ids) {
        size_t at = d->starts[token];
        size_t end = token + 1 < d->n_ids ? d->starts[token + 1] : at + 1;
        at = places_first_caller(&d->places, at, end);
        tool = places_tool_at(&d->places, at);
        message = places_message_at(&d->places, at);
        is_template = !places_is_caller(&d->places, at);
    }
    diagnosis_path(d, tool, message, path, sizeof(path));
    json_field_int(w, "token", token);
    json_field_str(w, "path", path);
    if (tool >= 0)
        json_field_str(w, "tool", d->places.tools[tool].name);
    else if (message >= 0)
        json_field_str(w, "role", d->places.messages[message].name);
    json_field_bool(w, "in_template", is_template);
}

static void diagnosis_difference(struct json_writer *w, const struct diagnosis *d,
                                 const struct tokenizer *t)
{
    const struct engine_miss *m = &d->miss;
    int32_t at = m->n_found, left = d->n_ids - at;
    int32_t before = at < DIAGNOSIS_BEFORE ? at : DIAGNOSIS_BEFORE;
    int32_t n_kept = m->n_kept < DIAGNOSIS_AFTER ? m->n_kept : DIAGNOSIS_AFTER;
    json_key(w, "first_difference");
    if (m->n_kept == 0 || left <= 0) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    diagnosis_place(w, d, at);
    diagnosis_text(w, "before", t, d->ids + at - before, before);
    diagnosis_text(w, "here", t, d->ids + at, left < DIAGNOSIS_AFTER ? left : DIAGNOSIS_AFTER);
    if (d->tells_kept)
        diagnosis_text(w, "kept", t, m->kept, n_kept);
    else
        json_field_null(w, "kept");
    json_end_object(w);
}

void diagnosis_write(struct json_writer *w, const struct diagnosis *d, const struct tokenizer *t)
{
    const struct engine_miss *m = &d->miss;
    bool is_whole = m->reason == ENGINE_MISS_WHOLE || m->reason == ENGINE_MISS_UNKNOWN;
    json_begin_object(w);
    json_field_str(w, "reason", diagnosis_reason(m->reason));
    json_field_int(w, "prompt_tokens", d->n_ids);
    json_field_int(w, "reused_tokens", m->n_reused);
    json_field_int(w, "disk_tokens", m->n_disk);
    json_field_int(w, "nearest_tokens", m->n_found);
    json_field_int(w, "evicted_tokens", m->n_given_up);
    json_key(w, "goes_on_at");
    if (!is_whole && m->n_reused < d->n_ids) {
        json_begin_object(w);
        diagnosis_place(w, d, m->n_reused);
        json_end_object(w);
    } else {
        json_null(w);
    }
    diagnosis_difference(w, d, t);
    json_field_object(w, "token_ids");
    json_field_int(w, "used", d->n_replies_used);
    json_field_int(w, "ignored", d->n_replies_ignored);
    json_end_object(w);
    json_field_int(w, "hoisted_lines", d->n_hoisted);
    json_end_object(w);
}
