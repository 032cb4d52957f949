/* openapi_types.c - what goes in and comes out, as far as no other table tells it: parts of requests, replies, events. The writers are
 * dialect_*.c, response_write.c, prepare_tokens.c and route.c; tests/api/test_openapi.py holds their replies against these schemas. */
#include "server/openapi.h"

#define COMPLETION_HEAD "id: string, created: int, model: string, system_fingerprint: string"
#define SEQUENCE        "sequence_number: int(0)"
#define PLACE \
    "item_id: string, output_index: int(0), content_index?: int(0), summary_index?: int(0)"
#define MESSAGE_HEAD \
    "id: string, type: 'message', role: 'assistant', model: string, content: AnswerBlock[]"
#define CACHE_PLACE "token: int(0), path: string, role?: string, tool?: string, in_template: bool"
#define INFILL_HEAD "index: int(0), content: string, stop: bool"

#define PIECES "with_pieces?: bool | null, return_token_strs?: bool | null"

/* clang-format off */
static const struct openapi_type openapi_types[] = {
    /* --- all --- */
    { "Error", "{error: {message: string, type: string, param: string | null, code: string | null}}", "param: the field at fault" },
    { "Token", "int(0)", "an id of the model's vocabulary" },
    { "Timings", "{prompt_n: int(0), prompt_ms: number(0), prompt_per_second: number(0), predicted_n: int(0), predicted_ms: number(0), predicted_per_second: number(0)}",
      "as llama.cpp's clients read them" },
    { "Usage", "{prompt_tokens: int(0), completion_tokens: int(0), total_tokens: int(0), prompt_tokens_details: {cached_tokens: int(0)}, completion_tokens_details: {reasoning_tokens: int(0)}, speculation?: {rounds: int(1), drafted: int(1), accepted: int(0), computed: int(0), accepted_per_position: int(0)[]}, cache_diagnostics?: CacheDiagnostics}",
      "the end token is not counted" },
    { "CacheDiagnostics", "{reason: 'unknown' | 'whole' | 'ends' | 'differs' | 'empty' | 'evicted' | 'state' | 'no_room' | 'scored' | 'off', prompt_tokens: int(0), reused_tokens: int(0), disk_tokens: int(0), nearest_tokens: int(0), evicted_tokens: int(0),"
      " goes_on_at: CachePlace | null, first_difference: {" CACHE_PLACE ", before: string, here: string, kept: string | null} | null, token_ids: {used: int(0), ignored: int(0)}, hoisted_lines: int(0)}",
      "where asked for: what the first prompt found of earlier ones, and why it was no more" },
    { "CachePlace", "{" CACHE_PLACE "}", "a token of the prompt, and the part of the request that it lies in" },
    { "ReasoningEffort", "'none' | 'minimal' | 'low' | 'medium' | 'high' | 'xhigh'", NULL },

    /* --- chat, requests --- */
    { "ChatMessage", "{role: 'system' | 'developer' | 'user' | 'assistant' | 'tool' | 'function', content?: string | ChatPart[] | null, name?: string | null,"
      " tool_calls?: ChatCall[] | null, tool_call_id?: string | null, reasoning_content?: string | null, token_ids?: Token[] | null}",
      "token_ids: of an assistant's message, the ids that it was sampled with; members that are not listed reach the template as they are" },
    { "ChatPart", "{type: 'text' | 'input_text' | 'output_text', text: string} | {type: 'refusal', refusal: string}", "parts are joined by a newline" },
    { "ChatCall", "{id?: string | null, type?: 'function' | null, function: {name: string, arguments?: string | object | null}}",
      "arguments that hold a JSON object reach the template as that object" },
    { "ChatTool", "{type?: 'function' | null, function: {name: string(1,127), description?: string | null, parameters?: object | null, strict?: bool | null}}",
      "strict: whenever it is called its arguments are of its schema" },

    /* --- chat, replies --- */
    { "ChatCompletion", "{" COMPLETION_HEAD ", object: 'chat.completion', choices: {index: int(0), message: ChatAnswer, logprobs: ChatLogprobs | null, finish_reason: ChatFinish}[1], usage: Usage, timings: Timings}", NULL },
    { "ChatFinish", "'stop' | 'length' | 'tool_calls'", NULL },
    { "ChatAnswer", "{role: 'assistant', content: string | null, reasoning_content?: string, refusal: null, token_ids?: Token[], tool_calls?: {id: string, type: 'function', function: {name: string, arguments: string}}[1]}",
      "content is null only where there are calls and nothing else" },
    { "ChatLogprobs", "{content: ChatLogprob[], refusal: null}", NULL },
    { "ChatLogprob", "{token: string, logprob: number, bytes: int(0,255)[], top_logprobs: {token: string, logprob: number, bytes: int(0,255)[]}[]}", NULL },
    { "ChatChunk", "{" COMPLETION_HEAD ", object: 'chat.completion.chunk', choices: {index: int(0), delta: ChatDelta, logprobs: ChatLogprobs | null, finish_reason: ChatFinish | null}[0,1],"
      " usage?: Usage | null, timings?: Timings}",
      "the last one has no choices and the usage, where that was asked for" },
    { "ChatDelta", "{role?: 'assistant', content?: string, reasoning_content?: string, token_ids?: Token[], tool_calls?: {index: int(0), id?: string, type?: 'function', function: {name?: string, arguments: string}}[1]}", NULL },
    { "ChatEvent", "ChatChunk | Error", NULL },
    { "ResumedEvent", "ChatEvent | CompletionEvent | InfillEvent | MessagesEvent", "as the request's own API has them" },

    /* --- completions --- */
    { "Completion", "{" COMPLETION_HEAD ", object: 'text_completion', choices: {text: string, index: int(0), logprobs: TextLogprobs | null, prompt_logprobs?: PromptLogprobs, token_ids?: Token[], finish_reason: 'stop' | 'length'}[1],"
      " usage: Usage, timings: Timings}", NULL },
    { "CompletionChunk", "{" COMPLETION_HEAD ", object: 'text_completion', choices: {text: string, index: int(0), logprobs: TextLogprobs | null, prompt_logprobs?: PromptLogprobs, token_ids?: Token[], finish_reason: 'stop' | 'length' | null}[0,1],"
      " usage?: Usage | null, timings?: Timings}", NULL },
    { "CompletionEvent", "CompletionChunk | Error", NULL },
    { "TextLogprobs", "{tokens: string[], token_logprobs: (number | null)[], top_logprobs: (map(number) | null)[], text_offset: int(0)[]}", NULL },
    { "PromptLogprobs", "(ids({logprob: number, rank: int(1) | null, decoded_token: string}) | null)[]", "null for the first token" },

    /* --- infill, embeddings, ranking, signal --- */
    { "Infill", "{" INFILL_HEAD ", stop_type: 'eos' | 'word' | 'limit', stopping_word: string, model: string, tokens_predicted: int(0), tokens_evaluated: int(0), tokens_cached: int(0), truncated: bool, timings: Timings}", NULL },
    { "InfillEvent", "{" INFILL_HEAD "} | Infill | Error", NULL },
    { "Embeddings", "{object: 'list', data: {object: 'embedding', index: int(0), embedding: number[1] | string}[1], model: string, usage: {prompt_tokens: int(0), total_tokens: int(0)}}",
      "a string: base64 of little-endian 32-bit floats" },
    { "Ranking", "{id: string, model: string, results: {index: int(0), relevance_score: number(0,1), document?: {text: string}}[1], usage: {prompt_tokens: int(0), total_tokens: int(0)}}", "the best first" },
    { "Scores", "{id: string, object: 'list', created: int, model: string, data: {index: int(0), object: 'score', score: number(0,1)}[1], usage: {prompt_tokens: int(0), total_tokens: int(0)}}", NULL },
    { "Signal", "{bins: int(0)[1], count: int(1), minimum: number, vocab: int(1), prompt_tokens: int(1)}", "bin i of count: from minimum + i x -minimum / count on" },

    /* --- responses, requests --- */
    { "InputItem", "{type?: 'message' | null, role: 'user' | 'assistant' | 'system' | 'developer', content?: string | InputPart[] | null}"
      " | {type: 'reasoning', summary?: {type: 'summary_text', text: string}[] | null, content?: {type: 'reasoning_text', text: string}[] | null}"
      " | {type: 'function_call', call_id: string, name: string, arguments?: string | object | null}"
      " | {type: 'custom_tool_call', call_id: string, name: string, input?: string | null}"
      " | {type: 'function_call_output' | 'custom_tool_call_output', call_id: string, output?: string | InputPart[] | null}"
      " | {type: 'item_reference', id: string}",
      "items of other types are skipped and named in x-plumb-ignored" },
    { "InputPart", "{type: 'input_text' | 'output_text' | 'text', text: string} | {type: 'refusal', refusal: string}", NULL },
    { "ResponsesTool", "{type: 'function', name: string(1,127), description?: string | null, parameters?: object | null, strict?: bool | null}"
      " | {type: 'custom', name: string(1,127), description?: string | null, format?: object | null}",
      "tools of other types are skipped and named in x-plumb-ignored" },

    /* --- responses, replies --- */
    { "Response", "{id: string, object: 'response', created_at: int, completed_at: int | null, status: 'queued' | 'in_progress' | 'completed' | 'incomplete' | 'failed' | 'cancelled', background: bool,"
      " error: {code: string, message: string} | null, incomplete_details: {reason: 'max_output_tokens'} | null, model: string, system_fingerprint: string, instructions: string | null,"
      " previous_response_id: string | null, max_output_tokens: int | null, max_tool_calls: any, temperature: number, top_p: number, top_logprobs: int, parallel_tool_calls: bool,"
      " tool_choice: string | object, tools: object[], text: {format: {type: 'text' | 'json_object' | 'json_schema'}, verbosity?: string}, reasoning: {effort: string | null, summary: string | null},"
      " truncation: 'auto' | 'disabled', store: bool, metadata: any, user: any, safety_identifier: any, prompt_cache_key: any, service_tier: 'default', output: OutputItem[],"
      " usage: ResponseUsage | null, prompt_cache_diagnostics?: {type: 'cache_miss', reason: 'tools_changed' | 'reasoning_effort_changed' | 'input_changed', cache_missed_tokens: int(0), comparison_reusable_tokens: int(0)}"
      " | {type: 'cache_hit' | 'comparison_response_not_found' | 'unavailable'}}",
      "store: whether it is kept; fields that change nothing come back as they were sent" },
    { "ResponseUsage", "{input_tokens: int(0), input_tokens_details: {cached_tokens: int(0), cache_write_tokens: int(0)}, output_tokens: int(0), output_tokens_details: {reasoning_tokens: int(0)}, total_tokens: int(0), cache_diagnostics?: CacheDiagnostics}", NULL },
    { "OutputItem", "{id: string, type: 'reasoning', status: ItemStatus, summary: {type: 'summary_text', text: string}[0,1], content: {type: 'reasoning_text', text: string}[0,1], encrypted_content: null}"
      " | {id: string, type: 'message', status: ItemStatus, role: 'assistant', content: OutputText[0,1]}"
      " | {id: string, type: 'function_call', status: ItemStatus, call_id: string, name: string, arguments: string}"
      " | {id: string, type: 'custom_tool_call', status: ItemStatus, call_id: string, name: string, input: string}", NULL },
    { "ItemStatus", "'in_progress' | 'completed' | 'incomplete'", NULL },
    { "OutputText", "{type: 'output_text', text: string, annotations: any[0,0], logprobs: ChatLogprob[]}", NULL },
    { "ResponseEvent", "{type: 'response.created' | 'response.queued' | 'response.in_progress' | 'response.completed' | 'response.incomplete' | 'response.failed', " SEQUENCE ", response: Response}"
      " | {type: 'response.output_item.added' | 'response.output_item.done', " SEQUENCE ", output_index: int(0), item: OutputItem}"
      " | {type: 'response.content_part.added' | 'response.content_part.done' | 'response.reasoning_summary_part.added' | 'response.reasoning_summary_part.done', " SEQUENCE ", " PLACE ","
      " part: OutputText | {type: 'reasoning_text' | 'summary_text', text: string}}"
      " | {type: 'response.output_text.delta', " SEQUENCE ", " PLACE ", delta: string, logprobs: ChatLogprob[]}"
      " | {type: 'response.reasoning_text.delta' | 'response.reasoning_summary_text.delta' | 'response.function_call_arguments.delta' | 'response.custom_tool_call_input.delta', " SEQUENCE ", " PLACE ", delta: string}"
      " | {type: 'response.output_text.done', " SEQUENCE ", " PLACE ", text: string, logprobs: ChatLogprob[]}"
      " | {type: 'response.reasoning_text.done' | 'response.reasoning_summary_text.done', " SEQUENCE ", " PLACE ", text: string}"
      " | {type: 'response.function_call_arguments.done', " SEQUENCE ", " PLACE ", name: string, arguments: string}"
      " | {type: 'response.custom_tool_call_input.done', " SEQUENCE ", " PLACE ", input: string}"
      " | {type: 'error', " SEQUENCE ", code: string, message: string, param: null}", NULL },
    { "ResponseDeleted", "{id: string, object: 'response', deleted: bool}", NULL },
    { "ItemList", "{object: 'list', data: object[0,100], first_id: string | null, last_id: string | null, has_more: bool}", "items as they were sent, each with an id" },
    { "InputTokens", "{object: 'response.input_tokens', input_tokens: int(1)}", NULL },

    /* --- messages, requests --- */
    { "MessagesMessage", "{role: 'user', content: string | UserBlock[]} | {role: 'assistant', content: string | AssistantBlock[], token_ids?: Token[] | null} | {role: 'system', content: string | TextBlock[]}", NULL },
    { "TextBlock", "{type: 'text', text: string} | {type: 'document', source: {type: 'text', data: string}}", NULL },
    { "UserBlock", "TextBlock | {type: 'tool_result', tool_use_id: string, content?: string | TextBlock[] | null, is_error?: bool | null}", NULL },
    { "AssistantBlock", "TextBlock | {type: 'thinking', thinking: string, signature?: string | null} | {type: 'redacted_thinking', data?: string | null} | {type: 'tool_use', id: string, name: string, input?: object | null}", NULL },
    { "MessagesTool", "{type?: 'custom' | null, name: string(1,127), description?: string | null, input_schema: object, strict?: bool | null}", "tools of other types are skipped and named in x-plumb-ignored" },

    /* --- messages, replies --- */
    { "MessagesError", "{type: 'error', error: {type: string, message: string}, request_id?: string}", NULL },
    { "Message", "{" MESSAGE_HEAD ", stop_reason: StopReason, stop_sequence: string | null, token_ids?: Token[], usage: MessagesUsage, diagnostics?: MessagesDiagnostics | null}", NULL },
    { "MessagesDiagnostics", "{cache_miss_reason: {type: 'tools_changed' | 'system_changed' | 'messages_changed', cache_missed_input_tokens: int(0)} | {type: 'previous_message_not_found' | 'unavailable'}}",
      "where `diagnostics` was sent; null: nothing differs, or there is nothing to compare with" },
    { "StopReason", "'end_turn' | 'max_tokens' | 'stop_sequence' | 'tool_use'", NULL },
    { "AnswerBlock", "{type: 'text', text: string} | {type: 'thinking', thinking: string, signature: string} | {type: 'tool_use', id: string, name: string, input: object}", NULL },
    { "MessagesUsage", "{input_tokens: int(0), cache_creation_input_tokens: int(0), cache_read_input_tokens: int(0), output_tokens: int(0), service_tier: 'standard', cache_diagnostics?: CacheDiagnostics}", "input_tokens: those that the cache did not have" },
    { "MessagesEvent", "{type: 'message_start', message: {" MESSAGE_HEAD ", stop_reason: null, stop_sequence: null, usage: MessagesUsage, diagnostics?: MessagesDiagnostics | null}}"
      " | {type: 'content_block_start', index: int(0), content_block: AnswerBlock}"
      " | {type: 'content_block_delta', index: int(0), delta: {type: 'text_delta', text: string} | {type: 'thinking_delta', thinking: string} | {type: 'signature_delta', signature: string} | {type: 'input_json_delta', partial_json: string}}"
      " | {type: 'content_block_stop', index: int(0)}"
      " | {type: 'message_delta', delta: {stop_reason: StopReason, stop_sequence: string | null, token_ids?: Token[]}, usage: MessagesUsage}"
      " | {type: 'message_stop' | 'ping'}"
      " | MessagesError", NULL },
    { "TokenCount", "{input_tokens: int(0)}", NULL },

    /* --- tokens and templates --- */
    { "TokenizeRequest", "{content: string, add_special?: bool | null, parse_special?: bool | null, " PIECES "}"
      " | {prompt: string, content?: null, add_special_tokens?: bool | null, parse_special?: bool | null, " PIECES "}"
      " | {messages: ChatMessage[1], content?: null, prompt?: null, tools?: ChatTool[] | null, add_generation_prompt?: bool | null, chat_template_kwargs?: object | null, " PIECES "}",
      "unless given: add_special, with_pieces and return_token_strs false, the others true" },
    { "Tokens", "{tokens: Token[] | {id: Token, piece: string | int(0,255)[]}[], count: int(0), max_model_len: int(1), token_strs?: string[]}", "piece: bytes where they are no text" },
    { "DetokenizeRequest", "{tokens: Token[]}", NULL },
    { "Text", "{content: string, prompt: string}", "the same text twice" },
    { "ApplyTemplateRequest", "{messages: ChatMessage[1], tools?: ChatTool[] | null, add_generation_prompt?: bool | null, chat_template_kwargs?: object | null, documents?: any}", NULL },
    { "Prompt", "{prompt: string}", NULL },

    /* --- the server --- */
    { "State", "{status: 'loading' | 'ok' | 'draining'}", NULL },
    { "Index", "{name: 'plumb', version: string, model: string | null, endpoints: string[1]}", NULL },
    { "Description", "{openapi: string, info: object, paths: object, components: object}", NULL },
    { "Model", "{id: string, object: 'model', created: int, owned_by: 'plumb', context_window: int(1), max_model_len: int(1), type: 'model', display_name: string, created_at: string, batch_mode: 'batch',"
      " gen_defaults: {temperature: number | null, top_p: number | null, top_k: number | null}, tools: bool, reasoning: bool, structured_output: bool, embeddings: bool, vision: bool, audio: bool, adapters: bool,"
      " training: bool, capabilities: map(bool)}", NULL },
    { "ModelList", "{object: 'list', data: Model[1,1], has_more: bool, first_id: string, last_id: string}", NULL },
    { "Cancelled", "{id: string, object: 'request', cancelled: int(1)}", NULL },
    { "Session", "{id: string, object: 'session', created: int, last_used: int | null, turns: int(0), tokens: int(0), histories: int(1)[0,4], running: bool, saved: bool, saved_at: int | null}", "tokens: of the newest history; turns: answers since the server started" },
    { "SessionList", "{object: 'list', data: Session[]}", NULL },
    { "SessionSaved", "{id: string, object: 'session', saved: bool, tokens: int(1), pages_durable: bool, elapsed_ms: int(0)}", "pages_durable: what layers keep of it is on disk, too" },
    { "SessionRestored", "{id: string, object: 'session', restored: bool, histories: int(1,4), tokens: int(1), cached_tokens: int(0), computed_tokens: int(0), elapsed_ms: int(0)}", NULL },
    { "SessionDeleted", "{id: string, object: 'session.deleted', deleted: bool}", NULL },
    { "Flushed", "{durable: bool, files: int(0), bytes: int(0), pending: int(0), dropped: int(0), failed: int(0), elapsed_ms: int(0)}", NULL },
};
/* clang-format on */

const struct openapi_type *openapi_type(size_t i)
{
    return i < ARRAY_LEN(openapi_types) ? &openapi_types[i] : NULL;
}
