/* What an answer's text means: the same parts however it is cut, calls of every format, damage repaired or left as content. */
#include "server/split.h"
#include "support/byte_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct tokenizer *tok;
static struct tools *tools;
static struct json_doc tools_doc;

static const char tools_text[] = "{\"tools\":["
                                 "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                                 "\"parameters\":{\"type\":\"object\",\"properties\":{"
                                 "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
                                 "\"tags\":{\"type\":\"array\"},\"deep\":{\"type\":"
                                 "\"object\"},\"ok\":{\"type\":\"boolean\"},\"any\":{},\"zip\":{"
                                 "\"anyOf\":[{\"type\":\"string\"}]}},\"required\":["
                                 "\"city\"]}}},"
                                 "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}},"
                                 "{\"type\":\"function\",\"function\":{\"name\":\"python\"}},"
                                 "{\"type\":\"web_search\"}]}";

static int setup(void **state)
{
    struct api_error e;
    if (byte_vocab_new(&tok, NULL) != ERR_OK)
        return -1;
    if (json_parse(&tools_doc, tools_text, strlen(tools_text), 1 << 20, NULL) != ERR_OK)
        return -1;
    return tools_read(&tools_doc.root, &tools, &e) ? 0 : -1;
}

static int teardown(void **state)
{
    tools_free(tools);
    json_doc_release(&tools_doc);
    tokenizer_free(tok);
    return 0;
}

/* Parts as text: C[..] R[..] T0[name]{arguments}; neighbours of a kind joined. */
struct told {
    struct buf out;
    int last; /* kind of the open bracket; -1 = none */
    char id[SPLIT_ID_BYTES];
    int32_t n_calls, n_ends;
};

static void tell(void *arg, const struct part *p)
{
    struct told *t = arg;
    bool is_text = p->kind == PART_CONTENT || p->kind == PART_REASONING;
    if (t->last >= 0 && (!is_text || t->last != (int)p->kind)) {
        buf_add_char(&t->out, ']');
        t->last = -1;
    }
    switch (p->kind) {
    case PART_CONTENT:
    case PART_REASONING:
        assert_true(p->n > 0);
        if (t->last < 0)
            buf_add_str(&t->out, p->kind == PART_CONTENT ? "C[" : "R[");
        t->last = (int)p->kind;
        buf_add(&t->out, p->text, p->n);
        break;
    case PART_CALL_BEGIN:
        assert_int_equal(p->call, t->n_calls++);
        assert_int_equal(strlen(p->id), 21);
        assert_true(strcmp(p->id, t->id) != 0);
        snprintf(t->id, sizeof(t->id), "%s", p->id);
        buf_printf(&t->out, "T%d[%s]", (int)p->call, p->name);
        break;
    case PART_CALL_ARGUMENTS:
        assert_string_equal(p->id, t->id);
        buf_add(&t->out, p->text, p->n);
        break;
    case PART_CALL_END:
        assert_int_equal(p->call, t->n_ends++);
        buf_add_char(&t->out, ';');
        break;
    }
}

/* Feed text cut after each byte i with cut(i), and say what came of it. */
static void run(const struct split_config *config, const char *text, unsigned cuts, bool was_cut,
                struct told *t)
{
    struct splitter *s = splitter_new(config, tell, t);
    size_t n = strlen(text), from = 0;
    *t = (struct told){ .last = -1 };
    buf_init(&t->out, MEM_CAT_BASE, 1 << 20);
    for (size_t i = 0; i < n; i++) {
        cuts = cuts * 1664525u + 1013904223u;
        if (cuts >> 30 == 0 || cuts == 1013904223u) {
            splitter_feed(s, text + from, i + 1 - from);
            from = i + 1;
        }
    }
    splitter_feed(s, text + from, n - from);
    splitter_finish(s, was_cut);
    if (t->last >= 0)
        buf_add_char(&t->out, ']');
    splitter_free(s);
}

struct row {
    const char *template; /* what the format is inferred from */
    const char *text, *want;
};

#define THINK  "<think></think>"
#define HERMES "<tool_call>"
#define CODER  "<tool_call><function=<parameter="
#define GLM    "<tool_call><arg_key>"
#define MINI   "<function name= <param name="
#define LLAMA  "{\"name\": function name, \"parameters\": dictionary"
#define DEEP31 "<｜tool▁calls▁begin｜>"
#define DEEP   "<｜tool▁calls▁begin｜>```json"
#define GEMMA  "<|tool_call>call:<|channel>thought"
#define HARM   "<|channel|><|message|>"
#define LFM    "<|tool_call_start|>"
#define FUNC   ">>>all"
#define DSML   "｜DSML｜<think>function_calls>"
#define MUSE   "<atem:function_calls><|message|>"
#define M(x)   "\xFF" x "\xFE"
#define W      "get_weather"

static void check_rows(const struct row *rows, size_t n, struct split_config base, bool was_cut)
{
    for (size_t i = 0; i < n; i++) {
        struct split_style style;
        struct told whole, cut;
        split_style_init(&style, rows[i].template, tok);
        base.style = &style;
        run(&base, rows[i].text, 0xFFFFFFFFu, was_cut, &whole);
        if (strcmp(whole.out.data, rows[i].want) != 0)
            print_error("row %zu (%s): %s\n", i, split_style_name(&style), rows[i].text);
        assert_string_equal(whole.out.data, rows[i].want);
        for (unsigned k = 0; k < 40; k++) {
            run(&base, rows[i].text, k * 2654435761u, was_cut, &cut);
            if (strcmp(whole.out.data, cut.out.data) != 0)
                print_error("row %zu cut %u: %s\n", i, k, rows[i].text);
            assert_string_equal(whole.out.data, cut.out.data);
            buf_release(&cut.out);
        }
        buf_release(&whole.out);
    }
}

/* Cut once, at every byte: the two pieces. */
static void check_every_byte(const struct row *rows, size_t n, struct split_config base)
{
    for (size_t i = 0; i < n; i++) {
        struct split_style style;
        size_t len = strlen(rows[i].text);
        split_style_init(&style, rows[i].template, tok);
        base.style = &style;
        for (size_t at = 0; at <= len; at++) {
            struct told t = { .last = -1 };
            buf_init(&t.out, MEM_CAT_BASE, 1 << 20);
            struct splitter *s = splitter_new(&base, tell, &t);
            splitter_feed(s, rows[i].text, at);
            splitter_feed(s, rows[i].text + at, len - at);
            splitter_finish(s, false);
            if (t.last >= 0)
                buf_add_char(&t.out, ']');
            if (strcmp(t.out.data, rows[i].want) != 0)
                print_error("row %zu at byte %zu\n", i, at);
            assert_string_equal(t.out.data, rows[i].want);
            splitter_free(s);
            buf_release(&t.out);
        }
    }
}

/* clang-format off */
static const struct row format_rows[] = {
    { HERMES, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>",
      "T0[" W "]{\"city\": \"Oslo\", \"days\": 3};" },
    { HERMES, "Let me see.\n\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
      "\"get_weather\", \"arguments\": {\"city\": \"Köln 👍\"}}\n</tool_call>",
      "C[Let me see.]T0[ping]{};T1[" W "]{\"city\": \"Köln 👍\"};" },
    { HERMES, "<tool_call>{\"arguments\": {\"city\": \"Oslo\"}, \"name\": \"get_weather\"}</tool_call> Done.",
      "T0[" W "]{\"city\":\"Oslo\"};C[Done.]" },
    { HERMES, "<tools>\n{\"name\": \"ping\", \"arguments\": {}}\n</tools>", "T0[ping]{};" },
    { HERMES, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n{\"name\": \"ping\", \"arguments\": {\"a\": 1}}\n</tool_call>",
      "T0[ping]{};T1[ping]{\"a\": 1};" },
    { HERMES, "<tool_call>[{\"name\": \"ping\", \"arguments\": {}}, {\"name\": \"ping\", \"arguments\": {}}]</tool_call>",
      "T0[ping]{};T1[ping]{};" },
    { CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\nSan\n  Jos\xC3\xA9 &amp; \"x\"\n\n</parameter>\n<parameter=days>\n3\n"
      "</parameter>\n<parameter=tags>\n[\"a\", 1]\n</parameter>\n</function>\n</tool_call>",
      "T0[" W "]{\"city\": \"San\\n  Jos\xC3\xA9 &amp; \\\"x\\\"\\n\", \"days\": 3, \"tags\": [\"a\", 1]};" },
    { CODER, "Hm.\n<function=ping>\n</function>", "C[Hm.]T0[ping]{};" },
    { CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=any>\n12\n</parameter>\n<parameter="
      "ok>\nTrue\n</parameter>\n<parameter=zip>\n12\n</parameter>\n<parameter=deep>\n{'a': None}\n</parameter>\n<parameter=days>\nmany\n"
      "</parameter></function></tool_call>",
      "T0[" W "]{\"city\": \"12\", \"any\": 12, \"ok\": true, \"zip\": \"12\", \"deep\": {\"a\": null}, \"days\": \"many\"};" },
    { CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\n<a>\n</parameter>\nstill</a>\n</parameter>\n</function>\n</tool_call>",
      "T0[" W "]{\"city\": \"<a>\\n</parameter>\\nstill</a>\"};" },
    { CODER, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", "T0[ping]{};" },
    { CODER, "<function=get_weather>{\"city\": \"Oslo\"}</function>", "T0[" W "]{\"city\": \"Oslo\"};" },
    { GLM, "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3"
      "</arg_value>\n</tool_call>\n<tool_call>ping\n</tool_call>",
      "T0[" W "]{\"city\": \"Oslo\", \"days\": 3};T1[ping]{};" },
    { GLM, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>", "T0[" W "]{\"city\": \"Oslo\"};" },
    { MINI, "Yes\n<function name=\"get_weather\"><param name=\"city\"><![CDATA[a < b </param>]]></param><param name=\"days\">2</param>"
      "</function>", "C[Yes]T0[" W "]{\"city\": \"a < b </param>\", \"days\": 2};" },
    { LLAMA, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}", "T0[" W "]{\"city\": \"Oslo\"};" },
    { LLAMA, M("<|python_tag|>") "{\"name\": \"ping\", \"parameters\": {}}; {\"name\": \"ping\", \"parameters\": {}}",
      "T0[ping]{};T1[ping]{};" },
    { LLAMA, M("<|python_tag|>") "print([1, 'a\n'])", "T0[python]{\"code\": \"print([1, 'a\\n'])\"};" },
    { LLAMA, M("<|python_tag|>") "get_weather.call(city=\"Oslo\", days=3)", "T0[" W "]{\"city\":\"Oslo\", \"days\":3};" },
    { LLAMA, "[get_weather(city='Oslo'), ping()] Done.", "T0[" W "]{\"city\":\"Oslo\"};T1[ping]{};C[Done.]" },
    { LLAMA, "[nope(city='Oslo')]", "C[[nope(city='Oslo')]]" },
    { LLAMA, "[get_weather(city) is a call]", "C[[get_weather(city) is a call]]" },
    { LLAMA, "[get_weather(city == 1) is none]", "C[[get_weather(city == 1) is none]]" },
    { LLAMA, "[1] says so", "C[[1] says so]" },
    { LFM, M("<|tool_call_start|>") "[get_weather(city='Oslo', days=3)]" M("<|tool_call_end|>"),
      "T0[" W "]{\"city\":\"Oslo\", \"days\":3};" },
    { LFM, "Ok.\n<|tool_call_start|>[ping(), get_weather(city=\"it's (f(1)), \\\"x\\\"\\n\", tags=['a', (1, 2.5), None], deep={'k': True, "
      "'v': [-1e3]}, ok=False ), ping( a = 1 )]<|tool_call_end|>Done.",
      "C[Ok.]T0[ping]{};T1[" W "]{\"city\":\"it's (f(1)), \\\"x\\\"\\n\", \"tags\":[\"a\", [1, 2.5], null], \"deep\":{\"k\": true, "
      "\"v\": [-1e3]}, \"ok\":false};T2[ping]{ \"a\": 1};C[Done.]" },
    { LFM, "<|tool_call_start|>[{\"name\": \"ping\", \"arguments\": {}}]<|tool_call_end|>", "T0[ping]{};" },
    { LFM, "<|tool_call_start|>[get_weather(city='Oslo'<|tool_call_end|> so", "T0[" W "]{\"city\":\"Oslo\"};C[so]" },
    { LFM, "<|tool_call_start|>[get_weather(city='Os", "T0[" W "]{\"city\":\"Os\"};" },
    { FUNC, "get_weather\n{\"city\": \"Oslo\"}>>>ping\n{}", "T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { FUNC, "all\nLook >>> and >>>here.\n>>>get_weather\n{\"city\": \"Oslo\"}", "C[Look >>> and >>>here.]T0[" W "]{\"city\": \"Oslo\"};" },
    { FUNC, "python\nprint(\"a\")\n>>>all\nDone \n", "T0[python]{\"code\": \"print(\\\"a\\\")\\n\"};C[Done \n]" },
    { FUNC, "Hello\nyou", "C[Hello\nyou]" },
    { FUNC, "nope\n{}", "C[nope\n{}]" },
    { FUNC, "ping\nis what I would call", "C[ping\nis what I would call]" },
    { DSML, "Hm.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Os <b>\nlo"
      "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"any\" string=\""
      "true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"other\" string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
      "name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
      "C[Hm.]T0[" W "]{\"city\": \"Os <b>\\nlo\", \"days\": 3, \"any\": \"12\", \"other\": [1]};T1[ping]{};" },
    { DSML, "<think>a</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"nope\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
      "R[a]C[<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"nope\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>]" },
    { "｜DSML｜", "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">12"
      "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", "T0[" W "]{\"city\": \"12\"};" },
    { MUSE, " to=self" M("<|message|>") "Hm" M("<|eom|>") M("<|start|>") "assistant to=get_weather" M("<|message|>") "<atem:function_calls>\n<atem:"
      "invoke name=\"get_weather\">\n<atem:parameter name=\"city\">Oslo</atem:parameter>\n<atem:parameter name=\"days\">3</atem:parameter>\n"
      "</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=ping<|message|><atem:function_calls>\n<atem:invoke name=\"ping\">\n"
      "</atem:invoke>\n</atem:function_calls>", "R[Hm]T0[" W "]{\"city\": \"Oslo\", \"days\": 3};T1[ping]{};" },
    { MUSE, " to=user<|message|>Hello <b>", "C[Hello <b>]" },
    { MUSE, " to=ping<|message|>What?<|eom|>", "C[What?]" },
    { MUSE, " to=ping<|message|><atem:function_calls>\n<atem:invoke name=\"nope\">\n</atem:invoke>\n</atem:function_calls><|eom|>",
      "C[<atem:function_calls>\n<atem:invoke name=\"nope\">\n</atem:invoke>\n</atem:function_calls>]" },
    { "Action: \"tool_name\"", "I will look.\nAction:\n```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        \"parameters\": {\n"
      "            \"city\": \"Oslo\"\n        }\n    },\n    {\n        \"tool_name\": \"ping\",\n        \"parameters\": {}\n    }\n]```\n",
      "C[I will look.]T0[" W "]{\n            \"city\": \"Oslo\"\n        };T1[ping]{};" },
    { "Action: \"tool_name\"", "Action: none, no Action: {}", "C[Action: none, no Action: {}]" },
    { "<|tools_prefix|>", "<|tools_prefix|>[{\"get_weather\": {\"city\": \"Oslo\"}}, {\"ping\": {}}]<|tools_suffix|>",
      "T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { "<|tools_prefix|>", "<|tools_prefix|>[{\"nope\": {}}]<|tools_suffix|>", "C[<|tools_prefix|>[{\"nope\": {}}]<|tools_suffix|>]" },
    { "functools[", "Yes functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"ping\", \"arguments\": {}}]",
      "C[Yes]T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { "functools[", "import functools\nx = functools[0]", "C[import functools\nx = functools[0]]" },
    { "function call<|role_sep|>", "Look:<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
      "\"Oslo\"}}<|message_sep|>\n\n", "C[Look:]T0[" W "]{\"city\": \"Oslo\"};" },
    { "function call<|role_sep|>", "function call<|role_sep|>\n{\"name\": \"ping\", \"arguments\": {}}", "T0[ping]{};" },
    { "<function=", "<function=get_weather>{\"city\": \"Oslo\"}</function>", "T0[" W "]{\"city\": \"Oslo\"};" },
    { "[TOOL_CALLS]", M("[TOOL_CALLS]") "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}, {\"name\": \"ping\", "
      "\"arguments\": {}, \"id\": \"123456789\"}]", "T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { "[TOOL_CALLS][ARGS]", "Ok " M("[TOOL_CALLS]") "get_weather" M("[ARGS]") "{\"city\": \"Oslo\"}" M("[TOOL_CALLS]") "ping"
      M("[CALL_ID]") "abc" M("[ARGS]") "{}", "C[Ok]T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { DEEP31, M("<｜tool▁calls▁begin｜>") M("<｜tool▁call▁begin｜>") "get_weather" M("<｜tool▁sep｜>") "{\"city\": \"Oslo\"}"
      M("<｜tool▁call▁end｜>") M("<｜tool▁call▁begin｜>") "ping" M("<｜tool▁sep｜>") "{}" M("<｜tool▁call▁end｜>")
      M("<｜tool▁calls▁end｜>"), "T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { DEEP, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜>", "T0[" W "]{\"city\": \"Oslo\"};" },
    { GEMMA, M("<|tool_call>") "call:get_weather{city:" M("<|\"|>") "O\"s\\lo" M("<|\"|>") ",days:3,ok:true,tags:[" M("<|\"|>") "a"
      M("<|\"|>") "]}" M("<tool_call|>"), "T0[" W "]{\"city\":\"O\\\"s\\\\lo\",\"days\":3,\"ok\":true,\"tags\":[\"a\"]};" },
    { GEMMA, "<|tool_call>call:ping{}<tool_call|>", "T0[ping]{};" },
    { "<|tool_calls_section_begin|>", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
      "{\"city\": \"Oslo\"}<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
      "<|tool_calls_section_end|>", "T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { "<minimax:tool_call>", "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Oslo</parameter>\n</invoke>\n"
      "<invoke name=\"ping\">\n</invoke>\n</minimax:tool_call>", "T0[" W "]{\"city\": \"Oslo\"};T1[ping]{};" },
    { "<|START_ACTION|>", M("<|START_ACTION|>") "[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": "
      "{\"city\": \"Oslo\"}}\n]" M("<|END_ACTION|>"), "T0[" W "]{\"city\": \"Oslo\"};" },
    { "<seed:tool_call>", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>",
      "T0[" W "]{\"city\": \"Oslo\"};" },
    { HARM, M("<|channel|>") "analysis" M("<|message|>") "Hm <tool_call>" M("<|end|>") M("<|start|>") "assistant" M("<|channel|>")
      "commentary to=functions.get_weather " M("<|constrain|>") "json" M("<|message|>") "{\"city\": \"Oslo\"}" M("<|call|>"),
      "R[Hm <tool_call>]T0[" W "]{\"city\": \"Oslo\"};" },
    { HARM, " to=functions.ping<|channel|>commentary json<|message|>{}<|call|>", "T0[ping]{};" },
    { HARM, "<|channel|>final<|message|>Hello", "C[Hello]" },
    { HARM, "Hello", "C[Hello]" },
    { "", "```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n```\n", "T0[" W "]{\"city\":\"Oslo\"};" },
    { "", "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}", "T0[" W "]{\"city\": \"Oslo\"};" },
    { HERMES, "Sure:\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}", "C[Sure:]T0[" W "]{\"city\":\"Oslo\"};" },
    { HERMES, "{\"type\": \"function\", \"function\": {\"name\": \"ping\", \"arguments\": \"{}\"}}", "T0[ping]{};" },
};
/* clang-format on */

static void test_every_format(void **state)
{
    struct split_config c = { .tools = tools, .finds_thought = true, .id_seed = 7 };
    check_rows(format_rows, ARRAY_LEN(format_rows), c, false);
    check_every_byte(format_rows, ARRAY_LEN(format_rows), c);
}

/* clang-format off */
static const struct row damage_rows[] = {
    { HERMES, "<tool_call>\n```json\n{\"name\": \"ping\", \"arguments\": {\"a\": 1}}\n```\n</tool_call>", "T0[ping]{\"a\": 1};" },
    { HERMES, "<tool_call>I will call it: {\"name\": \"ping\", \"arguments\": {}}</tool_call>", "T0[ping]{};" },
    { HERMES, "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'O\\'Neill \"x\"', 'ok': True, 'any': None,}}</tool_call>",
      "T0[" W "]{\"city\": \"O'Neill \\\"x\\\"\", \"ok\": true, \"any\": null};" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"</tool_call>", "T0[" W "]{\"city\": \"Oslo\"};" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"tags\": [1, 2</tool_call>", "T0[" W "]{\"tags\": [1, 2]};" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os", "T0[" W "]{\"city\": \"Os\"};" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"say \"hi\" now\"}}</tool_call>",
      "T0[" W "]{\"city\": \"say \\\"hi\\\" now\"};" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a\nb\tc\\d\"}}</tool_call>",
      "T0[" W "]{\"city\": \"a\\nb\\tc\\\\d\"};" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Oslo\\\"}\"}</tool_call>",
      "T0[" W "]{\"city\": \"Oslo\"};" },
    { HERMES, "<tool_call>{\"arguments\": {\"name\": \"get_weather\", \"city\": \"Oslo\"}}</tool_call>", "T0[" W "]{\"city\":\"Oslo\"};" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"city\": \"Oslo\"}</tool_call>", "T0[" W "]{\"city\":\"Oslo\"};" },
    { HERMES, "<tool_call>{\"name\": \"ping\", \"arguments\": null}</tool_call>", "T0[ping]{};" },
    { HERMES, "<tool_call>{\"name\": \"ping\", \"arguments\": {}}", "T0[ping]{};" },
    { HERMES, "<tool_call>{name: \"ping\", arguments: {a: 1}}</tool_call>", "T0[ping]{\"a\":1};" },
    /* content */
    { HERMES, "<tool_call>{\"name\": \"nope\", \"arguments\": {}}</tool_call>", "C[<tool_call>{\"name\": \"nope\", \"arguments\": {}}</tool_call>]" },
    { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {broken}}</tool_call>",
      "C[<tool_call>{\"name\": \"get_weather\", \"arguments\": {broken}}</tool_call>]" },
    { HERMES, "a <tool_call> tag, and <tool_", "C[a <tool_call> tag, and <tool_]" },
    { HERMES, "<tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>", "C[<tool_call>]T0[ping]{};" },
    { HERMES, "{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}}", "C[{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}}]" },
    { HERMES, "```json\n{\"name\": \"x\"}\n```\n and\n{\"a\": 1}\n", "C[```json\n{\"name\": \"x\"}\n```\n and\n{\"a\": 1}\n]" },
    { HERMES, "in line {\"name\": \"ping\", \"arguments\": {}}", "C[in line {\"name\": \"ping\", \"arguments\": {}}]" },
    { CODER, "<tool_call>\n<function=nope>\n</function>\n</tool_call>", "C[<tool_call>\n<function=nope>\n</function>\n</tool_call>]" },
    { CODER, "<function=ping>\n<parameter=a>\n1\n</parameter>\nwords</function>", "T0[ping]{\"a\": \"1\\n</parameter>\\nwords</function>\"};" },
    { CODER, "<function=ping>\n<parameter=a>\n1\n</parameter>\n</function>\nwords", "T0[ping]{\"a\": 1};C[words]" },
    { GLM, "<tool_call>nope\n<arg_key>", "C[<tool_call>nope\n<arg_key>]" },
    { HERMES, "  \n text \n\n", "C[  \n text \n\n]" },
};
/* clang-format on */

static void test_damage_is_repaired_or_content(void **state)
{
    struct split_config c = { .tools = tools, .finds_thought = true };
    check_rows(damage_rows, ARRAY_LEN(damage_rows), c, false);
    check_every_byte(damage_rows, ARRAY_LEN(damage_rows), c);
}

static void test_think_spans(void **state)
{
    static const struct row rows[] = {
        { THINK, "<think>\nHm \n</think>\n\nYes \n", "R[Hm]C[Yes \n]" },
        { THINK, "\n<think>a</think>b", "R[a]C[b]" },
        { THINK, "<think>\n\n</think>\n\nYes", "C[Yes]" },
        { THINK, "Use <think> for that</think>", "C[Use <think> for that</think>]" },
        { THINK, "<think>no end </thin", "R[no end </thin]" },
        { THINK HERMES,
          "<think>\n<tool_call>{\"name\": \"ping\", \"arguments\": "
          "{}}</tool_call>\n</think>\n\n<tool_call>{\"name\": \"ping\", "
          "\"arguments\": {}}</tool_call>",
          "R[<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>]T0[ping]{};" },
        { GEMMA, M("<|channel>") "thought\nHm\n" M("<channel|>") "Yes", "R[Hm]C[Yes]" },
        { "<|START_THINKING|>", M("<|START_THINKING|>") "Hm" M("<|END_THINKING|>") "Yes",
          "R[Hm]C[Yes]" },
    };
    static const struct row opened[] = {
        { THINK, "Hm\n</think>\n\nYes", "R[Hm]C[Yes]" },
        { THINK, "Hm", "R[Hm]" },
        { THINK, "</think>Yes", "C[Yes]" },
    };
    struct split_config c = { .tools = tools, .finds_thought = true };
    check_rows(rows, ARRAY_LEN(rows), c, false);
    check_every_byte(rows, ARRAY_LEN(rows), c);
    c.tools = NULL;
    c.starts_in_thought = true;
    check_rows(opened, ARRAY_LEN(opened), c, false);
    check_every_byte(opened, ARRAY_LEN(opened), c);
}

static void test_a_cut_call_stays_as_it_is(void **state)
{
    static const struct row rows[] = {
        { HERMES, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os",
          "T0[" W "]{\"city\": \"Os;" },
        { HERMES, "<tool_call>{\"name\": \"get_wea", "C[<tool_call>{\"name\": \"get_wea]" },
        { CODER, "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs",
          "T0[" W "]{\"city\": \"Os;" },
        { HERMES, "<tool_call>{\"name\": \"ping\", \"arguments\": {}}", "T0[ping]{};" },
    };
    struct split_config c = { .tools = tools };
    check_rows(rows, ARRAY_LEN(rows), c, true);
}

static void test_one_call_is_enough(void **state)
{
    static const struct row rows[] = {
        { HERMES,
          "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call><tool_call>{\"name\": "
          "\"ping\", \"arguments\": {}}"
          "</tool_call> more",
          "T0[ping]{};" },
    };
    struct split_config c = { .tools = tools, .is_single = true };
    check_rows(rows, ARRAY_LEN(rows), c, false);
}

static void test_the_opening_of_a_call_is_read_as_one(void **state)
{
    static const char *const templates[] = { HERMES,
                                             LLAMA,
                                             "",
                                             "[TOOL_CALLS]",
                                             "[TOOL_CALLS][ARGS]",
                                             "[TOOL_CALLS][CALL_ID][ARGS]",
                                             "<tool_calls>[",
                                             DEEP31,
                                             DEEP,
                                             GEMMA,
                                             HARM,
                                             "<|START_ACTION|>",
                                             "<TOOLCALL>",
                                             "<tool_calls>",
                                             "<|tool_call|>",
                                             "<|tool_calls_section_begin|>",
                                             "<|tools_prefix|>",
                                             "functools[",
                                             "function call<|role_sep|>",
                                             "Action: \"tool_name\"",
                                             "<function=",
                                             "<|python_start|>",
                                             FUNC,
                                             LFM };
    static const char *const elements[] = {
        CODER, GLM, MINI, "<minimax:tool_call>", "<seed:tool_call>", DSML, MUSE, "｜DSML｜"
    };
    struct split_config c = { .tools = tools, .is_forced = true };
    for (size_t i = 0; i < ARRAY_LEN(templates) + ARRAY_LEN(elements); i++) {
        bool is_element = i >= ARRAY_LEN(templates);
        struct split_style style;
        struct buf text;
        struct told t;
        buf_init(&text, MEM_CAT_BASE, 1 << 16);
        split_style_init(&style, is_element ? elements[i - ARRAY_LEN(templates)] : templates[i],
                         tok);
        c.style = &style;
        split_style_opening(&style, "get_weather", &text);
        bool is_gemma = strcmp(split_style_name(&style), "gemma") == 0;
        bool is_python = strcmp(split_style_name(&style), "python") == 0;
        if (!is_element)
            buf_add_str(&text, is_gemma ? "city:1}" : is_python ? "city=1)" : "\"city\":1}");
        run(&c, text.data, 1, false, &t);
        if (strncmp(t.out.data, "T0[get_weather]{", 16) != 0)
            print_error("%s: %s -> %s\n", split_style_name(&style), text.data, t.out.data);
        assert_int_equal(strncmp(t.out.data, "T0[get_weather]{", 16), 0);
        buf_release(&t.out);
        buf_release(&text);
    }
}

static void test_a_forced_call_is_one_whatever_comes(void **state)
{
    static const struct row rows[] = {
        { HERMES, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {Oslo}}\n</tool_call>",
          "T0[ping]{\"Oslo\":null};" },
        { HERMES, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"Oslo\", 3}}\n</tool_call>",
          "T0[ping]{\"Oslo\":null, \"3\":null};" },
        { HERMES, "<tool_call>\n{\"name\": \"ping\", \"arguments\": {", "T0[ping]{};" },
        { "", "{\"name\": \"ping\", \"arguments\": { I think", "T0[ping]{ \"I think\":null};" },
    };
    struct split_config c = { .tools = tools, .is_forced = true };
    check_rows(rows, ARRAY_LEN(rows), c, false);
    check_every_byte(rows, ARRAY_LEN(rows), c);
}

static void test_prompts_that_open_a_think_span(void **state)
{
    struct split_style s;
    split_style_init(&s, THINK, tok);
    assert_true(split_style_starts_open(&s, "user\n<think>\n", 13));
    assert_false(split_style_starts_open(&s, "<think>\n\n</think>\n\n", 19));
    assert_false(split_style_starts_open(&s, "what is <think>?\nassistant\n", 27));
    assert_false(split_style_starts_open(&s, "", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format),
        cmocka_unit_test(test_damage_is_repaired_or_content),
        cmocka_unit_test(test_think_spans),
        cmocka_unit_test(test_a_cut_call_stays_as_it_is),
        cmocka_unit_test(test_one_call_is_enough),
        cmocka_unit_test(test_the_opening_of_a_call_is_read_as_one),
        cmocka_unit_test(test_a_forced_call_is_one_whatever_comes),
        cmocka_unit_test(test_prompts_that_open_a_think_span),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
