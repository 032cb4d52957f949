/* prepare_prediction.c - "prediction": text that the answer is expected to say, as OpenAI's API has it. Its ids are looked up when next
 * tokens are guessed. */
#include "server/prepare_int.h"

#define PREDICTION "prediction"

static bool prediction_add(struct prepare_generation *g, const struct json *text,
                           struct api_error *e)
{
    struct err err;
    if (!json_is(text, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, PREDICTION,
                             "prediction.content: must be a string, or an array of text parts");
    if (tokenizer_encode(g->ctx->model->tokenizer, text->text, text->len, NULL, 0, &g->prediction,
                         &err) != ERR_OK)
        return api_error_set(e, 400, NULL, PREDICTION, "prediction.content: %s", err.text);
    return true;
}

bool prepare_prediction(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, PREDICTION), *content = json_get(v, "content");
    if (!v)
        return true;
    if (!json_str_eq(json_get(v, "type"), "content"))
        return api_error_set(e, 400, NULL, PREDICTION,
                             "prediction: must be an object of type 'content'");
    bool is_fine = true;
    if (json_is(content, JSON_TYPE_ARRAY))
        for (size_t i = 0; i < content->n && is_fine; i++)
            is_fine = prediction_add(g, json_get(&content->items[i], "text"), e);
    else
        is_fine = prediction_add(g, content, e);
    g->engine.predicted = g->prediction.ids;
    g->engine.n_predicted = g->prediction.n;
    return is_fine;
}
