/* dialect_infill.c - replies of /infill, in the shape that editors read from llama.cpp's server. */
#include "server/dialect.h"
#include "json/json.h"

static void infill_write(struct json_writer *w, const char *text, size_t n, bool is_over)
{
    json_begin_object(w);
    json_field_int(w, "index", 0);
    json_field_strn(w, "content", text, n);
    json_field_bool(w, "stop", is_over);
}

static void infill_write_end(struct json_writer *w, const struct dialect_head *h,
                             const struct dialect_choice *c, const struct dialect_usage *u)
{
    static const char *const types[] = {
        [FINISH_END] = "eos", [FINISH_STOP_STRING] = "word", [FINISH_LENGTH] = "limit"
    };
    json_field_str(w, "stop_type", types[c->finish]);
    json_field_str(w, "stopping_word", c->stop_string ? c->stop_string : "");
    json_field_str(w, "model", h->model);
    json_field_int(w, "tokens_predicted", u->completion_tokens);
    json_field_int(w, "tokens_evaluated", u->prompt_tokens);
    json_field_int(w, "tokens_cached", u->cached_tokens);
    json_field_bool(w, "truncated", false);
    dialect_timings(w, u);
    json_end_object(w);
}

static void infill_event(struct buf *out, const char *text, size_t n)
{
    struct json_writer w;
    buf_add_str(out, "data: ");
    json_writer_init(&w, out);
    infill_write(&w, text, n, false);
    json_end_object(&w);
    buf_add_str(out, "\n\n");
}

static void infill_part(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                        const struct dialect_choice *c, const struct part *p)
{
    if (p->n > 0)
        infill_event(out, p->text, p->n);
}

static void infill_end(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                       const struct dialect_choice *c)
{
}

static void infill_close(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                         const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    struct json_writer w;
    buf_add_str(out, "data: ");
    json_writer_init(&w, out);
    infill_write(&w, "", 0, true);
    infill_write_end(&w, h, c, u);
    buf_add_str(out, "\n\n");
}

static void infill_error(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                         const struct api_error *e)
{
    buf_add_str(out, "data: ");
    api_error_write(out, e);
    buf_add_str(out, "\n\n");
}

static void infill_keep_alive(struct buf *out, const struct dialect_head *h,
                              struct dialect_state *st, int32_t n)
{
    infill_event(out, "", 0);
}

static void infill_whole(struct buf *out, const struct dialect_head *h,
                         const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    struct json_writer w;
    bool has_text = c->n_parts > 0; /* all of it is one part of content */
    json_writer_init(&w, out);
    infill_write(&w, has_text ? c->parts[0].text : "", has_text ? c->parts[0].n : 0, true);
    infill_write_end(&w, h, c, u);
}

const struct dialect dialect_infill = {
    .id_prefix = "infill-",
    .part = infill_part,
    .end = infill_end,
    .close = infill_close,
    .error = infill_error,
    .keep_alive = infill_keep_alive,
    .whole = infill_whole,
};
