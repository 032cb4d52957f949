/* split.c - the splitter's buffer and its outermost states: text, think spans, openings of calls, and what follows a call.
 *
 * A state takes what it is sure about from in[pos, len) and says whether it got on; what it is not sure about stays until more has
 * come, so that cuts do not matter. */
#include "base/utf8.h"
#include "server/limits.h"
#include "server/split_int.h"

#include <stdio.h>
#include <string.h>

#define SPLIT_WITHHELD (1 << 20) /* bytes that may turn out to be a call; more are content */

struct splitter *splitter_new(const struct split_config *config,
                              void (*emit)(void *arg, const struct part *p), void *arg)
{
    struct splitter *s = mem_alloc(MEM_CAT_REQUEST, sizeof(*s));
    const struct split_format *f = config->style->format;
    *s = (struct splitter){ .config = *config, .format = f, .emit = emit, .arg = arg };
    buf_init(&s->raw, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&s->in, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&s->text, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&s->args, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&s->value, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    s->is_line_start = true;
    s->state = f->messages || f->names_recipient ? SPLIT_HEADER
               : config->starts_in_thought       ? SPLIT_THOUGHT
                                                 : SPLIT_TEXT;
    return s;
}

void splitter_free(struct splitter *s)
{
    if (!s)
        return;
    relaxed_release(&s->json);
    buf_release(&s->raw);
    buf_release(&s->in);
    buf_release(&s->text);
    buf_release(&s->args);
    buf_release(&s->value);
    mem_free(MEM_CAT_REQUEST, s);
}

/* --- looking --- */

static bool split_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

size_t split_skip_blanks(const struct splitter *s, size_t at)
{
    while (at < s->in.len && split_is_blank(s->in.data[at]))
        at++;
    return at;
}

size_t split_skip_mark(const struct splitter *s, size_t at)
{
    if (s->in.data[at] == SPLIT_MARK) {
        const char *end = memchr(s->in.data + at, SPLIT_MARK_END, s->in.len - at);
        return end ? (size_t)(end - s->in.data) : s->in.len - 1;
    }
    return at;
}

long split_match(const struct splitter *s, size_t at, const char *m)
{
    size_t i = at;
    if (!m)
        return 0;
    while (*m) {
        if (i == s->in.len)
            return s->is_end ? 0 : -1;
        char c = s->in.data[i];
        if (c == *m)
            m++;
        else if (c != SPLIT_MARK && c != SPLIT_MARK_END)
            return 0;
        i++;
    }
    while (i < s->in.len && s->in.data[i] == SPLIT_MARK_END)
        i++;
    return (long)(i - at);
}

/* --- emitting --- */

static void split_emit(struct splitter *s, enum part_kind kind, const struct buf *text)
{
    struct part p = { .kind = kind, .call = s->n_calls - 1, .id = s->id };
    p.name = s->tool ? s->tool->name : NULL;
    p.text = text ? text->data : "";
    p.n = text ? text->len : 0;
    if (kind == PART_CONTENT || kind == PART_REASONING) {
        p.call = 0;
        p.id = p.name = NULL;
    }
    s->emit(s->arg, &p);
}

void split_emit_text(struct splitter *s, enum part_kind kind, size_t to)
{
    buf_reset(&s->text);
    for (size_t i = s->pos; i < to; i++) {
        char c = s->in.data[i];
        if (c == SPLIT_MARK) /* a control token that marks nothing here */
            i = split_skip_mark(s, i);
        else if (c != SPLIT_MARK_END && !(s->drops_blanks && s->text.len == 0 && split_is_blank(c)))
            buf_add_char(&s->text, c);
    }
    if (s->text.len > 0) {
        struct part p = { .kind = kind, .text = s->text.data, .n = s->text.len };
        p.start = s->base + (int64_t)s->pos;
        p.end = s->base + (int64_t)to;
        size_t last = s->text.len;
        while (last > 0 && (s->text.data[last - 1] == ' ' || s->text.data[last - 1] == '\t'))
            last--;
        if (last > 0)
            s->is_line_start = s->text.data[last - 1] == '\n';
        s->drops_blanks = false;
        for (size_t i = 0; i < s->text.len && kind == PART_CONTENT; i++)
            s->has_content = s->has_content || !split_is_blank(s->text.data[i]);
        s->has_thought = s->has_thought || kind == PART_REASONING;
        s->emit(s->arg, &p);
    }
    s->pos = to;
    if (s->scan < to)
        s->scan = to;
}

void split_begin_call(struct splitter *s, const struct tool *tool)
{
    uint64_t h = s->config.id_seed ^ (uint64_t)(s->n_calls + 1) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u; /* splitmix64's finaliser */
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    snprintf(s->id, sizeof(s->id), "call_%016llx", (unsigned long long)(h ^ h >> 31));
    s->tool = tool;
    s->n_calls++;
    s->is_call = true;
    buf_reset(&s->args);
    split_emit(s, PART_CALL_BEGIN, NULL);
}

static void split_flush_arguments(struct splitter *s)
{
    if (s->is_call && s->args.len > 0)
        split_emit(s, PART_CALL_ARGUMENTS, &s->args);
    buf_reset(&s->args);
}

void split_end_call(struct splitter *s)
{
    split_flush_arguments(s);
    split_emit(s, PART_CALL_END, NULL);
    s->is_call = false;
    s->tool = NULL;
    s->state = s->config.is_single ? SPLIT_DONE : SPLIT_BETWEEN;
}

void split_to_text(struct splitter *s)
{
    const struct split_format *f = s->format;
    s->message = PART_CONTENT;
    s->state = f->messages || f->names_recipient ? SPLIT_MESSAGE : SPLIT_TEXT;
}

/* --- think spans --- */

static bool split_thought(struct splitter *s)
{
    const struct split_thought *x = s->config.style->thought;
    if (!s->has_thought) /* a line end behind the opening is framing, as the ones before the end are */
        s->drops_blanks = true;
    size_t text_end = s->pos;
    for (size_t i = s->pos; i < s->in.len; i++) {
        long n = split_match(s, i, x->close);
        if (n > 0) {
            split_emit_text(s, PART_REASONING, text_end);
            s->pos = s->scan = i + (size_t)n;
            s->drops_blanks = s->is_line_start = true;
            s->state = SPLIT_TEXT;
            return true;
        }
        if (n < 0)
            break;
        i = split_skip_mark(s, i);
        if (!split_is_blank(s->in.data[i]))
            text_end = i + 1;
    }
    if (s->is_end)
        text_end = s->in.len;
    split_emit_text(s, PART_REASONING, text_end);
    return false;
}

/* --- text --- */

/* Is in[at] the first of its line? Blanks before it do not count. */
static bool split_at_line_start(const struct splitter *s, size_t at)
{
    while (at > s->pos &&
           (strchr(" \t", s->in.data[at - 1]) || s->in.data[at - 1] == SPLIT_MARK_END)) {
        bool is_mark = s->in.data[--at] == SPLIT_MARK_END;
        while (is_mark && at > s->pos &&
               s->in.data[at] != SPLIT_MARK) /* hidden: as if it were not there */
            at--;
    }
    return at > s->pos ? s->in.data[at - 1] == '\n' : s->is_line_start;
}

bool split_is_first(const struct splitter *s, size_t at)
{
    size_t i = s->pos;
    while (i < at && (split_is_blank(s->in.data[i]) || s->in.data[i] == SPLIT_MARK))
        i = split_skip_mark(s, i) + 1;
    return !s->has_content && i >= at;
}

static bool split_may_think(const struct splitter *s, size_t at)
{
    return s->config.finds_thought && s->config.style->thought &&
           (s->in.data[at] == SPLIT_MARK || split_is_first(s, at));
}

/* Openings that are words stand at the start of a line, or have their bracket with them. */
static bool split_is_word_opening(const struct splitter *s, size_t at)
{
    const char *const words[] = { s->format->open, s->format->alt_open };
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (words[i] && words[i][0] == s->in.data[at] && words[i][0] != '<')
            return words[i][strlen(words[i]) - 1] == '[' || split_at_line_start(s, at);
    return false;
}

/* Does a call begin at in[at] as the grammar has it? As split_match. */
static long split_match_exact(const struct splitter *s, size_t at)
{
    const char *text = s->format->before_name;
    char trigger[96];
    size_t n = split_style_trigger(s->config.style);
    BUG_ON(n >= sizeof(trigger));
    memcpy(trigger, text + strspn(text, " \n"), n);
    trigger[n] = '\0';
    return split_match(s, at, trigger);
}

long split_match_spelled(const struct splitter *s, size_t at)
{
    const struct tools *tools = s->config.tools;
    struct buf text;
    const char *end;
    long best = 0;
    buf_init(&text, MEM_CAT_REQUEST, 1 << 10);
    for (size_t t = 0; t < tools->n && best <= 0; t++)
        for (int i = 0; best <= 0; i++) {
            buf_reset(&text);
            if (!split_style_spelling(s->config.style, i, tools->tools[t].name, &text, &end))
                break;
            long n = split_match(s, at, text.data);
            best = n != 0 ? n : best;
        }
    buf_release(&text);
    return best;
}

/* May what begins at in[at] be a call where a grammar governs them? As split_match. */
static long split_opens_exact(const struct splitter *s, size_t at)
{
    bool is_spelled = s->config.exact == SPLIT_EXACT_SPELLED;
    long n = 0;
    if (!is_spelled || split_style_is_marked(s->config.style))
        n = split_match_exact(s, at);
    if (n == 0 && is_spelled && s->in.data[at] == '{')
        n = split_match_spelled(s, at);
    return n == 0 && is_spelled && s->in.data[at] == '`' ? 1 : n;
}

/* What begins at in[at]: the bytes of an opening and its kind; 0 = nothing, -1 = not to be told yet. */
static long split_opens(const struct splitter *s, size_t at, enum split_opening *kind)
{
    const struct split_format *f = s->format;
    char c = s->in.data[at];
    long best = 0;
    *kind = SPLIT_OPENING_MARKER;
    long exact = s->config.exact != SPLIT_EXACT_OFF ? split_opens_exact(s, at) : 1;
    if (exact <= 0)
        return exact;
    if (c != SPLIT_MARK && c != '<' && c != '[' && c != '{' && c != '`' &&
        !split_is_word_opening(s, at))
        return 0;
    const char *const markers[] = { f->open, f->alt_open,
                                    f->elements ? f->elements->call_open : NULL };
    for (size_t i = 0; i < ARRAY_LEN(markers); i++) {
        long n = markers[i] && *markers[i] ? split_match(s, at, markers[i]) : 0;
        if (n > 0) {
            *kind = i == 2 ? SPLIT_OPENING_ELEMENT : SPLIT_OPENING_MARKER;
            return n;
        }
        best = n < 0 ? n : best;
    }
    if (best < 0)
        return best;
    if (c == '`' && split_at_line_start(s, at)) {
        *kind = SPLIT_OPENING_BARE;
        return split_match(s, at, "```");
    }
    *kind = SPLIT_OPENING_BARE;
    return split_is_bare_open(s, at) && split_at_line_start(s, at) ? 1 : 0;
}

void split_open(struct splitter *s, size_t at, size_t n, enum split_opening kind)
{
    size_t end = at;
    while (end > s->pos && split_is_blank(s->in.data[end - 1]))
        end--;
    split_emit_text(s, PART_CONTENT, end);
    s->opening = kind;
    /* of bare ones nothing is skipped */
    s->open_end = kind == SPLIT_OPENING_MARKER ? at + n : at;
    s->scan = at + n;
    s->is_fenced = s->is_python = false;
    s->is_list = kind == SPLIT_OPENING_MARKER && s->in.data[at + n - 1] == '[';
    split_reset_scan(s, s->open_end);
    s->state = SPLIT_OPENED;
}

/* Text up to the next opening; blanks that may stand before one wait. */
static bool split_text(struct splitter *s)
{
    bool finds_calls = s->config.tools != NULL;
    size_t i = s->scan > s->pos ? s->scan : s->pos;
    for (; i < s->in.len; i++) {
        enum split_opening kind;
        if (split_may_think(s, i)) {
            long n = split_match(s, i, s->config.style->thought->open);
            if (n > 0) {
                if (s->has_content || split_skip_blanks(s, s->pos) < i)
                    split_emit_text(s, PART_CONTENT, i);
                s->pos = s->scan = i + (size_t)n;
                s->has_thought = false;
                s->state = SPLIT_THOUGHT;
                return true;
            }
            if (n < 0)
                break;
        }
        long n = finds_calls ? split_opens(s, i, &kind) : 0;
        if (n > 0) {
            split_open(s, i, (size_t)n, kind);
            return true;
        }
        if (n < 0)
            break;
        i = split_skip_mark(s, i);
    }
    s->scan = i;
    while (!s->is_end && i > s->pos && split_is_blank(s->in.data[i - 1]) &&
           (finds_calls || s->drops_blanks || !s->has_content))
        i--;
    split_emit_text(s, PART_CONTENT, i);
    return false;
}

/* --- is it a call? --- */

static enum split_verdict split_try(struct splitter *s, size_t at)
{
    const struct split_format *f = s->format;
    size_t p = split_skip_blanks(s, at);
    if (p == s->in.len)
        return s->is_end ? SPLIT_NO : SPLIT_MORE;
    char c = s->in.data[p];
    enum split_verdict v = f->is_python && c != '{' && c != '`' ? split_try_python(s, p) : SPLIT_NO;
    if (v != SPLIT_NO || (s->pos == at && split_is_word(c))) /* words behind a call */
        return v;
    if (s->opening == SPLIT_OPENING_BARE)
        return split_try_json(s, p);
    if (f->item_open && c != '{' && !(c == '[' && f->item_open[0] != '[')) {
        long n = split_match(s, p, f->item_open);
        if (n < 0)
            return SPLIT_MORE;
        p = split_skip_blanks(s, p + (size_t)n);
        if (p == s->in.len)
            return s->is_end ? SPLIT_NO : SPLIT_MORE;
        c = s->in.data[p];
    }
    if (s->opening == SPLIT_OPENING_ELEMENT)
        return split_try_elements(s, at);
    if (c == '{' || c == '`' || c == '[')
        return split_try_json(s, p);
    if (f->elements)
        v = split_try_elements(s, p);
    else if (f->name_end)
        v = split_try_named(s, p);
    v = v == SPLIT_NO ? split_try_json(s, p) : v;
    return v == SPLIT_NO && f->is_python ? split_try_code(s, p) : v;
}

static bool split_opened(struct splitter *s)
{
    enum split_verdict v =
        s->in.len - s->pos > SPLIT_WITHHELD ? SPLIT_NO : split_try(s, s->open_end);
    if (v == SPLIT_MORE && !s->is_end)
        return false;
    if (v == SPLIT_YES)
        return true;
    /* text after all: at least its first character, so that what is inside is looked at */
    split_to_text(s);
    return true;
}

/* --- behind a call --- */

static bool split_between(struct splitter *s)
{
    const struct split_format *f = s->format;
    const char *const ends[] = { f->item_close, f->close, f->alt_close, s->is_fenced ? "```" : NULL,
                                 f->elements ? f->elements->call_close : NULL };
    if (f->names_recipient || (f->messages && !f->elements)) {
        s->state = SPLIT_HEADER;
        return true;
    }
    size_t p = split_skip_blanks(s, s->pos);
    if (p == s->in.len && !s->is_end)
        return false;
    s->drops_blanks = s->is_line_start = true;
    for (size_t i = 0; i < ARRAY_LEN(ends) && p < s->in.len; i++) {
        long n = split_match(s, p, ends[i]);
        if (n < 0)
            return false;
        if (n == 0)
            continue;
        s->pos = s->scan = p + (size_t)n;
        if (i == 1 || i == 2)
            s->state = f->messages ? SPLIT_HEADER : SPLIT_TEXT;
        s->is_fenced = s->is_fenced && i != 3;
        return true;
    }
    char c = p < s->in.len ? s->in.data[p] : '\0';
    if ((c == ']' && s->is_list) || ((c == ',' || c == ';') && (s->is_list || f->is_bare))) {
        s->is_list = s->is_list && c != ']';
        s->pos = s->scan = p + 1;
        return true;
    }
    bool is_next = c == '{' || split_match(s, p, f->item_open) != 0 ||
                   (f->elements && *f->elements->call_open &&
                    split_match(s, p, f->elements->call_open) != 0) ||
                   (s->is_python && split_is_word(c));
    if (is_next && c != '\0') {
        s->pos = s->open_end = p;
        s->scan = p + 1;
        split_reset_scan(s, p);
        s->state = SPLIT_OPENED;
        return true;
    }
    s->state = f->messages ? SPLIT_HEADER : SPLIT_TEXT;
    return true;
}

/* --- the way in --- */

static bool split_step(struct splitter *s)
{
    switch (s->state) {
    case SPLIT_TEXT:
        return split_text(s);
    case SPLIT_THOUGHT:
        return split_thought(s);
    case SPLIT_OPENED:
        return split_opened(s);
    case SPLIT_ARGUMENTS:
        return split_arguments(s);
    case SPLIT_ENVELOPE:
        return split_envelope(s);
    case SPLIT_ELEMENT:
        return split_element(s);
    case SPLIT_KEY:
        return split_key(s);
    case SPLIT_VALUE:
        return split_value(s);
    case SPLIT_BETWEEN:
        return split_between(s);
    case SPLIT_HEADER:
        return s->format->names_recipient ? split_recipient(s) : split_header(s);
    case SPLIT_MESSAGE:
        return s->format->names_recipient ? split_recipient_message(s) : split_message(s);
    case SPLIT_CODE:
        return split_code(s);
    case SPLIT_DONE:
        s->pos = s->in.len;
        return false;
    }
    return false;
}

static void split_run(struct splitter *s)
{
    while (split_step(s))
        ;
    split_flush_arguments(s);
    s->base += (int64_t)s->pos;
    s->scan = s->scan > s->pos ? s->scan - s->pos : 0;
    s->open_end = s->open_end > s->pos ? s->open_end - s->pos : 0;
    s->seen = s->seen > s->pos ? s->seen - s->pos : 0;
    buf_drop(&s->in, s->pos);
    s->pos = 0;
}

void splitter_feed(struct splitter *s, const char *text, size_t n)
{
    buf_add(&s->raw, text, n);
    n = utf8_complete_prefix(s->raw.data, s->raw.len);
    const char *mark = memrchr(s->raw.data, SPLIT_MARK, n);
    if (mark && !memchr(mark, SPLIT_MARK_END, n - (size_t)(mark - s->raw.data)))
        n = (size_t)(mark - s->raw.data);
    if (n == 0)
        return;
    buf_add(&s->in, s->raw.data, n);
    buf_drop(&s->raw, n);
    split_run(s);
}

void splitter_finish(struct splitter *s, bool was_cut)
{
    s->is_end = true;
    s->was_cut = was_cut;
    split_run(s);
    if (s->is_call && was_cut) { /* its end is not known: it stays open */
        split_flush_arguments(s);
        split_emit(s, PART_CALL_END, NULL);
        s->is_call = false;
    }
}

bool splitter_is_done(const struct splitter *s)
{
    return s->state == SPLIT_DONE;
}
