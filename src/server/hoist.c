#include "server/hoist.h"
#include "server/limits.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* --- lines --- */

static bool hoist_is_word(const char *s, size_t n, const char *const *words, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++)
        if (strlen(words[i]) == n && strncasecmp(s, words[i], n) == 0)
            return true;
    return false;
}

/* Words for dates and times, and numbers, with nothing else. */
static bool hoist_is_date(const char *s, size_t n)
{
    static const char *const words[] = {
        "today",     "today's",   "todays",  "current",  "currently", "the",   "date",   "time",
        "datetime",  "timestamp", "now",     "is",       "it",        "of",    "at",     "on",
        "and",       "day",       "year",    "local",    "system",    "utc",   "gmt",    "z",
        "t",         "am",        "pm",      "st",       "nd",        "rd",    "th",     "mon",
        "tue",       "wed",       "thu",     "fri",      "sat",       "sun",   "monday", "tuesday",
        "wednesday", "thursday",  "friday",  "saturday", "sunday",    "jan",   "feb",    "mar",
        "apr",       "may",       "jun",     "jul",      "aug",       "sep",   "sept",   "oct",
        "nov",       "dec",       "january", "february", "march",     "april", "june",   "july",
        "august",    "september", "october", "november", "december",
    };
    int n_digits = 0;
    for (size_t i = 0; i < n;) {
        size_t k = i;
        while (k < n && (isalpha((unsigned char)s[k]) || (s[k] == '\'' && k > i)))
            k++;
        if (k > i && !hoist_is_word(s + i, k - i, words, ARRAY_LEN(words)))
            return false;
        if (k == i && !strchr("0123456789 \t-/:.,+()[]", s[i]))
            return false;
        n_digits += k == i && isdigit((unsigned char)s[i]);
        i = k > i ? k : i + 1;
    }
    return n_digits >= 3;
}

static bool hoist_is_id(const char *s, size_t n)
{
    static const char *const kinds[] = { "request", "session", "conversation", "trace", "message" };
    size_t at = n > 2 && strncasecmp(s, "x-", 2) == 0 ? 2 : 0, word = at;
    bool has_digit = false;
    while (at < n && isalpha((unsigned char)s[at]))
        at++;
    if (!hoist_is_word(s + word, at - word, kinds, ARRAY_LEN(kinds)) || at + 3 > n ||
        !strchr(" -_", s[at]) || strncasecmp(s + at + 1, "id", 2) != 0)
        return false;
    at += 3;
    if (n - at > 3 && strncasecmp(s + at, " is", 3) == 0)
        at += 3;
    size_t sign = at;
    while (at < n && strchr(" \t:=", s[at]))
        at++;
    for (word = at; at < n && (isalnum((unsigned char)s[at]) || strchr("-_.:", s[at])); at++)
        has_digit = has_digit || isdigit((unsigned char)s[at]);
    return at == n && word > sign && at - word >= 6 && has_digit;
}

static bool hoist_is_volatile(const char *s, size_t n)
{
    static const char billing[] = "x-anthropic-billing-header:";
    if (n > HOIST_LINE_BYTES || memchr(s, '\0', n))
        return false;
    while (n > 0 && strchr(" \t\r", s[n - 1]))
        n--;
    return (n >= sizeof(billing) - 1 && strncasecmp(s, billing, sizeof(billing) - 1) == 0) ||
           hoist_is_date(s, n) || hoist_is_id(s, n);
}

size_t hoist_find(const char *text, size_t n, int32_t *n_lines)
{
    size_t at = 0;
    *n_lines = 0;
    while (at < n && *n_lines < HOIST_LINES_MAX) {
        const char *feed = memchr(text + at, '\n', n - at);
        size_t len = feed ? (size_t)(feed - text) - at : n - at;
        if (!hoist_is_volatile(text + at, len))
            break;
        ++*n_lines;
        at += len;
        while (at < n && strchr(" \t\r\n", text[at]))
            at++;
    }
    if (at == n) /* a system prompt that is nothing else stays where it is */
        at = *n_lines = 0;
    return at;
}

/* --- messages --- */

/* The text that a system message begins with; NULL. */
static const struct json *hoist_head(const struct json *message)
{
    const struct json *role = json_get(message, "role"), *v = json_get(message, "content");
    if (!json_str_eq(role, "system") && !json_str_eq(role, "developer"))
        return NULL;
    if (json_is(v, JSON_TYPE_ARRAY) && v->n > 0)
        v = json_get(&v->items[0], "text");
    return json_is(v, JSON_TYPE_STRING) ? v : NULL;
}

/* The last message that is a user's or a tool's, if its content can be added to; 0: there is none. */
static size_t hoist_target(const struct json *messages)
{
    for (size_t i = messages->n; i-- > 1;) {
        const struct json *role = json_get(&messages->items[i], "role");
        const struct json *v = json_get(&messages->items[i], "content");
        if (json_str_eq(role, "user") || json_str_eq(role, "tool"))
            return json_is(v, JSON_TYPE_STRING) || json_is(v, JSON_TYPE_ARRAY) ? i : 0;
    }
    return 0;
}

/* A part of text, without its first `cut` bytes. */
static void hoist_write_part(struct json_writer *w, const struct json *part, size_t cut)
{
    json_begin_object(w);
    for (size_t i = 0; i < part->n; i++) {
        const struct json_member *m = &part->members[i];
        json_key(w, m->key);
        if (strcmp(m->key, "text") == 0)
            json_strn(w, m->value.text + cut, m->value.len - cut);
        else
            json_value(w, &m->value);
    }
    json_end_object(w);
}

/* Content without its first `cut` bytes, and with the tail [n] behind an empty line (parts are joined by a line feed). */
static void hoist_write_content(struct json_writer *w, const struct json *v, size_t cut,
                                const char *tail, size_t n)
{
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (v->type == JSON_TYPE_STRING) {
        buf_add(&text, v->text + cut, v->len - cut);
        buf_add_str(&text, n > 0 ? "\n\n" : "");
        buf_add(&text, tail, n);
        json_strn(w, text.data, text.len);
    } else {
        json_begin_array(w);
        for (size_t i = 0; i < v->n; i++)
            if (i == 0 && cut > 0)
                hoist_write_part(w, &v->items[i], cut);
            else
                json_value(w, &v->items[i]);
        if (n > 0) {
            buf_add_char(&text, '\n');
            buf_add(&text, tail, n);
            json_begin_object(w);
            json_field_str(w, "type", "text");
            json_field_strn(w, "text", text.data, text.len);
            json_end_object(w);
        }
        json_end_array(w);
    }
    w->out->failed = w->out->failed || text.failed;
    buf_release(&text);
}

static void hoist_write_message(struct json_writer *w, const struct json *message, size_t cut,
                                const char *tail, size_t n)
{
    json_begin_object(w);
    for (size_t i = 0; i < message->n; i++) {
        const struct json_member *m = &message->members[i];
        json_key(w, m->key);
        if (strcmp(m->key, "content") == 0)
            hoist_write_content(w, &m->value, cut, tail, n);
        else
            json_value(w, &m->value);
    }
    json_end_object(w);
}

/* The body with the head's first `cut` bytes moved to the end of message `to`. */
static void hoist_write(struct json_writer *w, const struct json *body, const struct json *head,
                        size_t cut, size_t to)
{
    size_t n = cut;
    while (n > 0 && strchr(" \t\r\n", head->text[n - 1]))
        n--;
    json_begin_object(w);
    for (size_t i = 0; i < body->n; i++) {
        const struct json_member *m = &body->members[i];
        json_key(w, m->key);
        if (strcmp(m->key, "messages") != 0) {
            json_value(w, &m->value);
            continue;
        }
        json_begin_array(w);
        for (size_t k = 0; k < m->value.n; k++)
            if (k == 0 || k == to)
                hoist_write_message(w, &m->value.items[k], k == 0 ? cut : 0, head->text,
                                    k == to ? n : 0);
            else
                json_value(w, &m->value.items[k]);
        json_end_array(w);
    }
    json_end_object(w);
}

bool hoist_apply(const struct json *body, struct json_doc *doc, int32_t *n_lines,
                 struct api_error *e)
{
    const struct json *messages = json_get(body, "messages");
    struct json_writer w;
    struct buf text;
    struct err err;
    *n_lines = 0;
    if (!json_is(messages, JSON_TYPE_ARRAY) || messages->n < 2)
        return true;
    const struct json *head = hoist_head(&messages->items[0]);
    size_t to = hoist_target(messages);
    size_t cut = head && to > 0 ? hoist_find(head->text, head->len, n_lines) : 0;
    if (cut == 0)
        return true;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    json_writer_init(&w, &text);
    hoist_write(&w, body, head, cut, to);
    bool is_fine = (buf_check(&text, "messages", &err) == ERR_OK &&
                    json_parse(doc, text.data, text.len, LIMIT_JSON_VALUES, &err) == ERR_OK) ||
                   api_error_set(e, 400, NULL, "messages", "%s", err.text);
    buf_release(&text);
    return is_fine;
}
