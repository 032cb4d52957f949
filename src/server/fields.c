#include "server/fields.h"
#include "engine/engine.h"
#include "server/schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum fields_kind {
    FIELDS_KIND_NUMBER, /* double */
    FIELDS_KIND_INT,    /* int64_t */
    FIELDS_KIND_BOOL,
    FIELDS_KIND_OTHER, /* read by its own code in prepare.c or messages.c */
    FIELDS_KIND_NOTED, /* accepted; changes nothing here */
};

struct fields_row {
    const char *name;
    unsigned routes; /* enum fields_route */
    enum fields_kind kind;
    double min, max;
    size_t offset; /* in struct fields */
    const char *doc;
    const char *type; /* OTHER: in the notation of schema.h; null is one of its values everywhere */
};

#define AT(member) offsetof(struct fields, member)
#define CHAT       FIELDS_ROUTE_CHAT
#define COMP       FIELDS_ROUTE_COMPLETIONS
#define SIGNAL     FIELDS_ROUTE_SIGNAL
#define ALL        FIELDS_ROUTE_ALL
#define RESP       FIELDS_ROUTE_RESPONSES
#define MSG        FIELDS_ROUTE_MESSAGES
#define EMB        FIELDS_ROUTE_EMBEDDINGS
#define FILL       FIELDS_ROUTE_INFILL
#define RERANK     FIELDS_ROUTE_RERANK
#define SCORE      FIELDS_ROUTE_SCORE
#define EVERY      (ALL | SIGNAL | RESP | MSG | EMB | FILL | RERANK | SCORE)
#define MOST       (ALL | RESP | MSG | FILL)
#define NUMBER     FIELDS_KIND_NUMBER
#define INT        FIELDS_KIND_INT
#define BOOL       FIELDS_KIND_BOOL
#define OTHER      FIELDS_KIND_OTHER
#define NOTED      FIELDS_KIND_NOTED
#define BIG        9007199254740992.0 /* 2^53 */

/* clang-format off */
static const struct fields_row fields_table[] = {
    { "model", EVERY, OTHER, 0, 0, 0, "any name, or none, is served by the loaded model; with `--strict-model` another name is 404", "string" },
    { "messages", CHAT | SIGNAL, OTHER, 0, 0, 0, "roles system, developer, user, assistant, tool; content is a string, null, or text parts (joined by a newline)", "ChatMessage[1]" },
    { "prompt", COMP, OTHER, 0, 0, 0, "a string, an array of strings, an array of token ids, or an array of those; control tokens in strings are parsed", "string | Token[1] | (string | Token[1])[1,32]" },
    { "prompt", SIGNAL, OTHER, 0, 0, 0, "a string, or an array of token ids; control tokens in strings are parsed", "string | Token[1]" },
    { "stream", MOST, BOOL, 0, 0, AT(stream), "server-sent events", NULL },
    { "stream_options", ALL, OTHER, 0, 0, 0, "`include_usage`: a last chunk with empty `choices` and the usage", "{include_usage?: bool | null}" },
    { "max_tokens", ALL | FILL, INT, -1, BIG, AT(max_tokens), "at most so many tokens, clamped to the room; unset or -1: until the model ends or the context is full; 0: only with `echo` or `prompt_logprobs`", NULL },
    { "max_completion_tokens", ALL, INT, -1, BIG, AT(max_completion_tokens), "as `max_tokens`, and wins over it", NULL },
    { "n_predict", COMP | FILL, INT, -1, BIG, AT(max_tokens), "as `max_tokens`", NULL },
    { "n", ALL, INT, 1, LIMIT_CHOICES, AT(n), "answers per prompt; the first equals the one that `n` = 1 gives", NULL },
    { "best_of", COMP, INT, 1, LIMIT_CHOICES, AT(best_of), "only the value of `n`", NULL },
    { "temperature", MOST, NUMBER, 0, 100, AT(temperature), "0: always the likeliest token", NULL },
    { "top_p", MOST, NUMBER, 0, 1, AT(top_p), "1: off", NULL },
    { "top_k", MOST, INT, -1, BIG, AT(top_k), "0, -1 or more than the vocabulary: off", NULL },
    { "min_p", MOST, NUMBER, 0, 1, AT(min_p), "0: off", NULL },
    { "typical_p", MOST, NUMBER, 0, 1, AT(typical_p), "1: off", NULL },
    { "xtc_probability", MOST, NUMBER, 0, 1, AT(xtc_probability), "0: off", NULL },
    { "xtc_threshold", MOST, NUMBER, 0, 1, AT(xtc_threshold), "over 0.5: off; 0.1 where only `xtc_probability` is given", NULL },
    { "repetition_penalty", MOST, NUMBER, 0.01, 100, AT(repetition_penalty), "1: off", NULL },
    { "repeat_penalty", MOST, NUMBER, 0.01, 100, AT(repetition_penalty), "as `repetition_penalty`", NULL },
    { "repeat_last_n", MOST, INT, -1, BIG, AT(penalty_last_n), "tokens that penalties look back on; 0 or -1: all", NULL },
    { "presence_penalty", MOST, NUMBER, -100, 100, AT(presence_penalty), "0: off", NULL },
    { "frequency_penalty", MOST, NUMBER, -100, 100, AT(frequency_penalty), "0: off", NULL },
    { "seed", MOST, INT, -9223372036854775808.0, 9223372036854775807.0, AT(seed), "same seed, same answer; unset or -1: a random one, told in the header `x-plumb-seed`", NULL },
    { "logit_bias", MOST, OTHER, 0, 0, 0, "object of token id to a number from -100 to 100; -100: never", "ids(number(-100,100))" },
    { "stop", ALL | RESP | FILL, OTHER, 0, 0, 0, "a string or up to 16 strings of up to 256 bytes; empty ones are ignored", "string(0,256) | string(0,256)[0,16]" },
    { "logprobs", CHAT, BOOL, 0, 0, AT(logprobs), "log-probabilities of the answer's tokens", NULL },
    { "top_logprobs", CHAT, INT, 0, 20, AT(n_logprobs), "so many of the likeliest tokens at each place; needs `logprobs`", NULL },
    { "logprobs", COMP, INT, 0, 20, AT(n_logprobs), "log-probabilities of the tokens and of so many of the likeliest", NULL },
    { "echo", COMP, BOOL, 0, 0, AT(echo), "the prompt comes first in the text, and with `logprobs` in its lists", NULL },
    { "prompt_logprobs", COMP, INT, 0, 20, AT(n_prompt_logprobs), "log-probabilities of the prompt's tokens and of so many of the likeliest in their places", NULL },
    { "suffix", COMP, OTHER, 0, 0, 0, "what follows the answer: for models with fill-in-the-middle tokens, else 400 unless empty; the prompt is a string then", "string" },
    { "input_prefix", FILL, OTHER, 0, 0, 0, "text before the gap", "string" },
    { "input_suffix", FILL, OTHER, 0, 0, 0, "text behind it", "string" },
    { "prompt", FILL, OTHER, 0, 0, 0, "how the answer begins", "string" },
    { "input_extra", FILL, OTHER, 0, 0, 0, "further files: an array of objects with `filename` and `text`", "{text: string, filename?: string | null}[]" },
    { "cache_prompt", FILL, NOTED, 0, 0, 0, "accepted", NULL },
    { "samplers", FILL, NOTED, 0, 0, 0, "accepted: the order of filters is fixed", NULL },
    { "ignore_eos", MOST, BOOL, 0, 0, AT(ignore_eos), "the model's end tokens do not end the answer", NULL },
    { "tools", CHAT | SIGNAL, OTHER, 0, 0, 0, "functions that the model may call ([tools](tools.md)); of a signal, handed to the template", "ChatTool[]" },
    { "tool_choice", CHAT | SIGNAL, OTHER, 0, 0, 0, "`auto`; `none` hides the tools from the template; `required` or a named function: the answer is a call, its arguments constrained to the schema", "'none' | 'auto' | 'required' | {type?: 'function', function: {name: string}}" },
    { "response_format", ALL, OTHER, 0, 0, 0, "`text`, `json_object`, `json_schema` (with `json_schema.schema`, or `schema` beside `type`) or `structural_tag`: what the answer must be ([structured output](structured-output.md))", "{type: 'text' | 'json_object' | 'json_schema' | 'structural_tag', json_schema?: {schema: object | bool, name?: string | null, strict?: bool | null} | null, schema?: object | bool | null}" },
    { "structured_outputs", ALL, OTHER, 0, 0, 0, "as vLLM has it: one of `json`, `json_object`, `regex`, `choice`, `grammar`, `structural_tag`; `disable_any_whitespace`: JSON without blanks; `any_order`: properties in any order", "{json?: object | string | bool | null, json_object?: bool | null, regex?: string | null, choice?: string[1] | null, grammar?: string | null, structural_tag?: object | string | null, disable_any_whitespace?: bool | null, any_order?: bool | null}" },
    { "guided_json", ALL, OTHER, 0, 0, 0, "a JSON schema, or the text of one: the answer is JSON of it", "object | string | bool" },
    { "guided_regex", ALL, OTHER, 0, 0, 0, "a regular expression of the whole answer", "string" },
    { "guided_choice", ALL, OTHER, 0, 0, 0, "the answer is one of these strings", "string[1]" },
    { "guided_grammar", ALL, OTHER, 0, 0, 0, "as `grammar`", "string" },
    { "grammar", ALL | FILL, OTHER, 0, 0, 0, "GBNF, llama.cpp's notation; empty: none", "string" },
    { "json_schema", ALL | FILL, OTHER, 0, 0, 0, "as `guided_json`", "object | string | bool" },
    { "chat_template_kwargs", CHAT | SIGNAL | RESP, OTHER, 0, 0, 0, "variables for the template", "object" },
    { "reasoning_effort", CHAT | SIGNAL, OTHER, 0, 0, 0, "`none`: no reasoning; `minimal`, `low`, `medium`, `high`, `xhigh`: reasoning, and a variable for the template", "ReasoningEffort" },
    { "thinking", CHAT | SIGNAL | RESP | MSG, OTHER, 0, 0, 0, "`{\"type\": \"enabled\", \"budget_tokens\": N}` or `{\"type\": \"disabled\"}`: as Anthropic has it", "{type: 'enabled' | 'adaptive' | 'disabled', budget_tokens?: int(0,2147483647) | null}" },
    { "thinking_budget", CHAT | SIGNAL | RESP | MSG, INT, 0, BIG, AT(thinking_budget), "after so many tokens of reasoning its end is forced and the answer goes on", NULL },
    { "documents", CHAT | SIGNAL | RESP, OTHER, 0, 0, 0, "a variable for the template", "any" },
    { "add_generation_prompt", CHAT | SIGNAL, BOOL, 0, 0, AT(add_generation_prompt), "true unless given", NULL },
    { "priority", EVERY, INT, -1000, 1000, AT(priority), "lower goes first; 0 unless given", NULL },
    { "deadline_ms", EVERY, INT, 1, 604800000, AT(deadline_ms), "so long after its arrival the request ends with an error (504, `deadline_exceeded`); what was streamed stays", NULL },
    { "disconnect", ALL | MSG | FILL, OTHER, 0, 0, 0, "what becomes of the answer when its client goes: `cancel` (unless given) ends it; `finish` lets it go on to its end, for the prompt cache; `resumable` stops it, and whoever asks for the request's id gets all of it ([resume](resume.md); without `--generation-checkpoint` as `cancel`, and named as `disconnect.resumable`)", "'cancel' | 'finish' | 'resumable'" },
    { "cache_salt", EVERY, OTHER, 0, 0, 0, "a string: prompts of different salts never share what was computed, so that how soon an answer comes tells nothing of another tenant's prompts", "string(0,256)" },
    { "session_id", ALL | RESP | MSG, OTHER, 0, 0, 0, "the conversation that this is a turn of: what it leaves is not given up for others' ([sessions](sessions.md)); up to 128 letters, digits and `-_.:`; changes no answer", "word(1,128)" },
    { "prompt_cache_key", ALL | RESP | MSG, OTHER, 0, 0, 0, "as `session_id`, where that is not given; any string", "string" },
    { "cache_diagnostics", ALL | RESP | MSG, BOOL, 0, 0, AT(cache_diagnostics), "the usage tells what was reused of earlier prompts and why not more ([prompt cache](caching.md#why-it-missed)); changes no answer", NULL },
    { "return_token_ids", ALL | MSG, BOOL, 0, 0, AT(return_token_ids), "the answer brings the ids that it was sampled with, as `token_ids`; sent back with the assistant's message they keep the next turn's prompt what was computed ([prompt cache](caching.md#replies-by-their-ids))", NULL },
    { "speculation", ALL | RESP | MSG | FILL, BOOL, 0, 0, AT(speculation), "false: next tokens are not guessed ([speculation](speculation.md)); the answer is the same; true unless given", NULL },
    { "prediction", CHAT, OTHER, 0, 0, 0, "`{\"type\": \"content\", \"content\": TEXT}`: what the answer is expected to say, a file before its edit for example; next tokens are guessed from it, too ([speculation](speculation.md)); the answer is the same", "{type: 'content', content: string | {type: 'text', text: string}[]}" },
    { "diagnostics", MSG, OTHER, 0, 0, 0, "`previous_message_id`: the reply's `diagnostics` tells in what this request differs from that message's", "{previous_message_id?: string | null}" },
    { "prompt_cache_options", RESP, OTHER, 0, 0, 0, "`comparison_response_id`: `prompt_cache_diagnostics` tells in what this request differs from that response's; `mode` and `ttl` have no effect", "{comparison_response_id?: string | null, mode?: string | null, ttl?: string | null}" },
    { "background", ALL | SIGNAL | EMB, BOOL, 0, 0, AT(background), "runs only while nothing else is there to do", NULL },
    { "count", SIGNAL, INT, 1, ENGINE_SIGNAL_BINS_MAX, AT(count), "bins; 80 unless given", NULL },
    { "minimum", SIGNAL, NUMBER, -1e6, 0, AT(minimum), "where the first bin begins, below 0; -20 unless given", NULL },
    { "parallel_tool_calls", CHAT, BOOL, 0, 0, AT(parallel_tool_calls), "false: the answer ends with its first call", NULL },
    { "user", MOST | EMB | RERANK | SCORE, NOTED, 0, 0, 0, "accepted", NULL },
    { "metadata", MOST, NOTED, 0, 0, 0, "accepted", NULL },
    { "store", ALL, NOTED, 0, 0, 0, "accepted: nothing is stored", NULL },
    { "input", EMB, OTHER, 0, 0, 0, "a string, up to 2048 strings, an array of token ids, or up to 2048 of those", "string(1) | Token[1] | (string(1) | Token[1])[1,2048]" },
    { "instruction", EMB, OTHER, 0, 0, 0, "what the texts are looked for with: each is embedded as `Instruct: INSTRUCTION`, a line feed, `Query:TEXT`", "string(0,1048576)" },
    { "instruction", RERANK | SCORE, OTHER, 0, 0, 0, "what makes a document fit; unset: that it answers a web search", "string(0,1048576)" },
    { "query", RERANK, OTHER, 0, 0, 0, "what is looked for", "string(1,1048576)" },
    { "documents", RERANK, OTHER, 0, 0, 0, "up to 2048 strings, or objects with `text`", "(string(1) | {text: string(1)})[1,2048]" },
    { "top_n", RERANK, INT, 1, BIG, AT(top_n), "only the best so many", NULL },
    { "return_documents", RERANK, BOOL, 0, 0, AT(return_documents), "the texts stand in the results", NULL },
    { "truncate_prompt_tokens", RERANK | SCORE, INT, -1, BIG, AT(truncate), "texts are cut at their end until a pair and what stands around it has at most so many tokens; -1: as many as the context has. Unset: a pair that is too long is an error", NULL },
    { "text_1", SCORE, OTHER, 0, 0, 0, "the query of each pair: one, or as many as `text_2` has", "string(1) | string(1)[1,2048]" },
    { "text_2", SCORE, OTHER, 0, 0, 0, "the document of each pair", "string(1) | string(1)[1,2048]" },
    { "dimensions", EMB, INT, 1, BIG, AT(dimensions), "only the first so many numbers, normalised again", NULL },
    { "encoding_format", EMB, OTHER, 0, 0, 0, "`float`, or `base64`: of the numbers as little-endian 32-bit floats", "'float' | 'base64'" },
    { "input", RESP, OTHER, 0, 0, 0, "a string, or items: messages, calls of functions and custom tools, their outputs, reasoning, references to items of kept responses; others are skipped and named as `input.TYPE`", "string | InputItem[]" },
    { "instructions", RESP, OTHER, 0, 0, 0, "a string; with all system and developer messages it becomes one system message at the front", "string" },
    { "previous_response_id", RESP, OTHER, 0, 0, 0, "a kept response whose conversation goes on; unknown: 404", "string" },
    { "conversation", RESP, OTHER, 0, 0, 0, "not supported: 400 unless null", "null" },
    { "prompt", RESP, OTHER, 0, 0, 0, "not supported: 400 unless null", "null" },
    { "store", RESP, BOOL, 0, 0, AT(store), "keep the response; true unless given", NULL },
    { "background", RESP, BOOL, 0, 0, AT(background), "answer at once, run without a client; needs `store`", NULL },
    { "max_output_tokens", RESP, INT, 1, BIG, AT(max_completion_tokens), "at most so many tokens, reasoning included; unset: until the model ends or the context is full", NULL },
    { "max_tool_calls", RESP, NOTED, 0, 0, 0, "accepted: it is about tools that run on the server", NULL },
    { "tools", RESP, OTHER, 0, 0, 0, "functions and custom tools; others are skipped and named as `tools.TYPE`", "ResponsesTool[]" },
    { "tool_choice", RESP, OTHER, 0, 0, 0, "`none`, `auto`, `required`, a function, a custom tool, `allowed_tools`", "'none' | 'auto' | 'required' | {type: 'function' | 'custom', name: string} | {type: 'allowed_tools', mode?: 'auto' | 'required' | 'none', tools: {name: string}[]}" },
    { "parallel_tool_calls", RESP, OTHER, 0, 0, 0, "as in chat", "bool" },
    { "include", RESP, OTHER, 0, 0, 0, "`message.output_text.logprobs`; what else there is has no effect", "string[]" },
    { "top_logprobs", RESP, INT, 0, 20, AT(n_logprobs), "so many of the likeliest tokens at each place; log-probabilities are told where it is over 0 or `include` asks for them", NULL },
    { "reasoning", RESP, OTHER, 0, 0, 0, "`effort`, as `reasoning_effort` in chat; with `summary` the reasoning is told as a summary, else as reasoning text", "{effort?: ReasoningEffort | null, summary?: string | null, generate_summary?: string | null}" },
    { "text", RESP, OTHER, 0, 0, 0, "`format` of type text, json_object or json_schema (with a `schema`): as `response_format`; `verbosity` is told to the template", "{format?: {type: 'text' | 'json_object' | 'json_schema', schema?: object | bool | null, name?: string | null, strict?: bool | null} | null, verbosity?: string | null}" },
    { "truncation", RESP, OTHER, 0, 0, 0, "`disabled`: too long a conversation is 400; `auto`: its oldest turns are left out", "'auto' | 'disabled'" },
    { "stream_options", RESP, NOTED, 0, 0, 0, "accepted", NULL },
    { "prompt_cache_retention", RESP, NOTED, 0, 0, 0, "accepted", NULL },
    { "safety_identifier", RESP, NOTED, 0, 0, 0, "accepted", NULL },
    { "messages", MSG, OTHER, 0, 0, 0, "roles user, assistant, system; content is a string or blocks: text, documents of text, tool_use, tool_result, thinking", "MessagesMessage[1]" },
    { "system", MSG, OTHER, 0, 0, 0, "a string or blocks of text (joined by a newline)", "string | TextBlock[]" },
    { "max_tokens", MSG, INT, 1, BIG, AT(max_tokens), "needed; at most so many tokens, clamped to the room", NULL },
    { "stop_sequences", MSG, OTHER, 0, 0, 0, "up to 16 strings of up to 256 bytes; empty ones are ignored", "string(0,256)[0,16]" },
    { "tools", MSG, OTHER, 0, 0, 0, "tools with an `input_schema`; others are skipped and named as `tools.TYPE`", "MessagesTool[]" },
    { "tool_choice", MSG, OTHER, 0, 0, 0, "an object of type `auto`, `any`, `none`, or `tool` with a `name`; `disable_parallel_tool_use`", "{type: 'auto' | 'any' | 'none', disable_parallel_tool_use?: bool | null} | {type: 'tool', name: string, disable_parallel_tool_use?: bool | null}" },
    { "output_config", MSG, OTHER, 0, 0, 0, "`format`: `{\"type\": \"json_schema\", \"schema\": ...}`: the answer is JSON of the schema ([structured output](structured-output.md))", "{format?: {type: 'json_schema', schema: object | bool} | null}" },
    { "output_format", MSG, OTHER, 0, 0, 0, "its older place", "{type: 'json_schema', schema: object | bool}" },
    { "chat_template_kwargs", MSG, OTHER, 0, 0, 0, "variables for the template", "object" },
    { "cache_control", MSG, NOTED, 0, 0, 0, "accepted, here and in blocks and tools: what can be reused is", NULL },
    { "container", MSG, NOTED, 0, 0, 0, "accepted", NULL },
    { "inference_geo", MSG, NOTED, 0, 0, 0, "accepted", NULL },
    { "service_tier", MOST, NOTED, 0, 0, 0, "accepted", NULL },
};
/* clang-format on */

static const struct fields_row *fields_find(const char *name, size_t len, enum fields_route route)
{
    for (size_t i = 0; i < ARRAY_LEN(fields_table); i++)
        if ((fields_table[i].routes & route) && strlen(fields_table[i].name) == len &&
            memcmp(fields_table[i].name, name, len) == 0)
            return &fields_table[i];
    return NULL;
}

void fields_ignore(char *ignored, const char *name, size_t len)
{
    size_t at = strlen(ignored);
    int n = at > 0;
    for (const char *c = ignored; *c; c++)
        n += *c == ',';
    if (n >= LIMIT_IGNORED_NAMES || len > 64 || at + len + 2 > LIMIT_IGNORED_BYTES)
        return;
    if (n > 0)
        ignored[at++] = ',';
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        bool is_fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '-' || c == '.';
        ignored[at++] = is_fine ? c : '?';
    }
    ignored[at] = '\0';
}

void fields_ignore_list(char *ignored, const char *names)
{
    for (const char *name = names; *name; name += strspn(name, ",")) {
        size_t n = strcspn(name, ",");
        fields_ignore(ignored, name, n);
        name += n;
    }
}

/* The bounds of an integer; the least int64_t is FIELDS_UNSET. */
static int64_t fields_min(const struct fields_row *row)
{
    return row->min <= -0x1p63 ? INT64_MIN + 1 : (int64_t)row->min;
}

static int64_t fields_max(const struct fields_row *row)
{
    return row->max >= 0x1p63 ? INT64_MAX : (int64_t)row->max;
}

static bool fields_read_one(const struct fields_row *row, const struct json *v, struct fields *out,
                            struct api_error *e)
{
    struct err err;
    void *at = (char *)out + row->offset;
    enum err_code code = ERR_OK;
    switch (row->kind) {
    case FIELDS_KIND_NUMBER:
        code = json_to_double(v, row->name, row->min, row->max, at, &err);
        break;
    case FIELDS_KIND_INT:
        code = json_to_int(v, row->name, fields_min(row), fields_max(row), at, &err);
        break;
    case FIELDS_KIND_BOOL:
        if (!json_is(v, JSON_TYPE_BOOL))
            return api_error_set(e, 400, NULL, row->name, "%s: must be true or false", row->name);
        *(bool *)at = v->boolean;
        break;
    case FIELDS_KIND_OTHER:
    case FIELDS_KIND_NOTED:
        break;
    }
    return code == ERR_OK || api_error_set(e, 400, NULL, row->name, "%s", err.text);
}

bool fields_read(const struct json *body, enum fields_route route, struct fields *out,
                 char *ignored, struct api_error *e)
{
    *out = (struct fields){ .add_generation_prompt = true,
                            .store = true,
                            .speculation = true,
                            .parallel_tool_calls = true };
    for (size_t i = 0; i < ARRAY_LEN(fields_table); i++) {
        void *at = (char *)out + fields_table[i].offset;
        if (fields_table[i].kind == FIELDS_KIND_NUMBER)
            *(double *)at = NAN;
        else if (fields_table[i].kind == FIELDS_KIND_INT)
            *(int64_t *)at = FIELDS_UNSET;
    }
    ignored[0] = '\0';
    for (size_t i = 0; i < body->n; i++) {
        const struct json_member *m = &body->members[i];
        const struct fields_row *row = fields_find(m->key, m->key_len, route);
        if (!row)
            fields_ignore(ignored, m->key, m->key_len);
        else if (!json_is(&m->value, JSON_TYPE_NULL) && !fields_read_one(row, &m->value, out, e))
            return false;
    }
    return true;
}

static void fields_print_routes(struct buf *out, unsigned routes)
{
    static const char *const names[] = { "chat",      "completions", "signal",
                                         "responses", "messages",    "embeddings",
                                         "infill",    "rerank",      "score" };
    bool is_first = true;
    if (routes == EVERY) {
        buf_add_str(out, "all");
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!(routes >> i & 1))
            continue;
        buf_printf(out, "%s%s", is_first ? "" : ", ", names[i]);
        is_first = false;
    }
}

void fields_print(struct buf *out)
{
    static const char *const kinds[] = { "number", "integer", "boolean", "", "" };
    buf_add_str(out, "| field | endpoint | type | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_LEN(fields_table); i++) {
        const struct fields_row *r = &fields_table[i];
        buf_printf(out, "| `%s` | ", r->name);
        fields_print_routes(out, r->routes);
        buf_printf(out, " | %s", kinds[r->kind]);
        if ((r->kind == NUMBER || r->kind == INT) && r->max < BIG)
            buf_printf(out, " %g to %g", r->min, r->max);
        buf_printf(out, " | %s |\n", r->doc);
    }
}

/* --- JSON Schema --- */

static void fields_write_one(struct buf *out, const struct fields_row *r, bool is_required)
{
    char text[96];
    const char *type = r->type ? r->type : "any";
    BUG_ON((r->kind == OTHER) != (r->type != NULL));
    if (r->kind == BOOL)
        type = "bool";
    if (r->kind == NUMBER || r->kind == INT) {
        snprintf(text, sizeof(text), "number(%.17g,%.17g)", r->min, r->max);
        type = text;
    }
    if (r->kind == INT)
        snprintf(text, sizeof(text), "int(%lld,%lld)", (long long)fields_min(r),
                 (long long)fields_max(r));
    schema_write(out, type, !is_required, r->doc);
}

/* Is the name one of those, which stand between commas? */
static bool fields_is_among(const char *names, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = names; *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        if (n == len && memcmp(p, name, n) == 0)
            return true;
        p += n;
    }
    return false;
}

void fields_write_schema(struct buf *out, enum fields_route route, const char *required,
                         const char *more)
{
    const char *comma = "";
    buf_add_str(out, "{\"type\":\"object\",\"properties\":{");
    for (size_t i = 0; i < ARRAY_LEN(fields_table); i++) {
        const struct fields_row *r = &fields_table[i];
        if (!(r->routes & route))
            continue;
        buf_printf(out, "%s\"%s\":", comma, r->name);
        fields_write_one(out, r, fields_is_among(required, r->name));
        comma = ",";
    }
    buf_add_str(out, "},\"required\":[");
    comma = "";
    for (size_t i = 0; i < ARRAY_LEN(fields_table); i++) {
        const struct fields_row *r = &fields_table[i];
        if (!(r->routes & route) || !fields_is_among(required, r->name))
            continue;
        buf_printf(out, "%s\"%s\"", comma, r->name);
        comma = ",";
    }
    buf_printf(out, "]%s%s}", more ? "," : "", more ? more : "");
}
