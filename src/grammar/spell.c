/* spell.c - what a text goes on with where its grammar leaves no choice but that of blanks. */
#include "grammar/grammar_int.h"

#include <string.h>

#define SPELL_BYTES 128 /* looked at in one go */
#define SPELL_UNIT  2   /* blanks of a level, until others are seen */

static bool spell_is_blank(int c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

void grammar_layout_feed(struct grammar_layout *l, const char *bytes, size_t n)
{
    if (n > 1 && l->n_blanks > 0 && bytes[0] == ' ' && !spell_is_blank(bytes[1]))
        l->is_apart = false;
    else if (n > 0 && l->n_blanks > 1 && !spell_is_blank(bytes[0]))
        l->is_apart = true;
    for (size_t i = 0; i < n; i++) {
        if (spell_is_blank(bytes[i])) {
            l->has_line = l->has_line || bytes[i] == '\n';
            l->n_blanks = bytes[i] == '\n' ? 0 : l->n_blanks + 1;
            continue;
        }
        if (l->has_line || l->first == 0) {
            l->unit = l->n_blanks > l->indent ? l->n_blanks - l->indent : l->unit;
            l->indent = l->n_blanks;
            l->before = l->first;
            l->first = bytes[i];
        }
        l->last = bytes[i];
        l->n_blanks = 0;
        l->has_line = false;
    }
}

/* The next blank before c, as json.dumps and its like lay out: on one line, or a member a line. 0 = none. */
static char layout_blank(const struct grammar_layout *l, char c)
{
    bool is_opened = l->last == '{' || l->last == '[', is_end = c == '}' || c == ']';
    bool has_lines = l->first == '"' || l->first == '}' || l->first == ']' ||
                     (l->first == '{' && l->before == '`'); /* fenced: written to be read */
    int32_t unit = l->unit > 0 ? l->unit : SPELL_UNIT, n = 0;
    if (has_lines && (is_opened || is_end || l->last == ',')) {
        n = l->indent + (is_opened && !is_end ? unit : 0) - (is_end && !is_opened ? unit : 0);
        if (!l->has_line)
            return is_opened && is_end ? '\0' : '\n';
    } else if (!l->has_line) {
        n = l->last == ':' || l->last == ',';
    }
    return l->n_blanks < n ? ' ' : '\0';
}

static bool spell_has(const uint32_t allowed[8], char c)
{
    return allowed[(uint8_t)c / 32] >> (uint8_t)c % 32 & 1;
}

/* The byte that comes next; false: it is open which. */
static bool spell_next(const struct grammar_state *s, const struct grammar_layout *l, char *out)
{
    uint32_t allowed[8];
    int n = 0, n_blank = 0;
    char blank = 0;
    if (grammar_is_complete(s))
        return false;
    grammar_next_bytes(s, allowed);
    for (int c = 0; c < 256; c++) {
        if (!spell_has(allowed, (char)c))
            continue;
        bool is_blank = spell_is_blank(c);
        n_blank += is_blank;
        n += !is_blank;
        *(is_blank ? &blank : out) = (char)c;
    }
    if (n == 0 && n_blank == 1)
        *out = blank;
    if (n != 1)
        return n == 0 && n_blank == 1;
    blank = layout_blank(l, *out);
    if (n_blank > 0 && blank && spell_has(allowed, blank))
        *out = blank;
    return true;
}

/* Bytes of the next token of a text [n] at its beginning, at most: of several blanks one is left for the token behind them. */
static size_t spell_cut(const struct grammar_layout *l, const char *bytes, size_t n)
{
    size_t blanks = 0;
    while (blanks < n && bytes[blanks] == ' ')
        blanks++;
    return blanks > 1 && blanks < n && !l->is_apart ? blanks - 1 : n;
}

int32_t grammar_spell(const struct grammar_state *s, const struct grammar_layout *l,
                      struct grammar_state *probe, int32_t *ids, int32_t n_max)
{
    const struct grammar_vocab *v = s->g->vocab;
    struct grammar_layout layout = *l;
    char bytes[SPELL_BYTES];
    size_t n = 0;
    int32_t n_ids = 0;
    if (!spell_next(s, &layout, bytes))
        return 0;
    grammar_state_copy(probe, s);
    while (n < sizeof(bytes) && spell_next(probe, &layout, &bytes[n]) &&
           grammar_step(probe, &bytes[n], 1))
        grammar_layout_feed(&layout, &bytes[n++], 1);
    bool is_whole = n == sizeof(bytes) || grammar_is_over(probe);
    for (size_t at = 0, len; at < n && n_ids < n_max; at += len) {
        int32_t id = grammar_vocab_longest(v, bytes + at, spell_cut(l, bytes + at, n - at), &len);
        if (id < 0 || (!is_whole && at + len == n))
            break;
        ids[n_ids++] = id;
    }
    return n_ids;
}
