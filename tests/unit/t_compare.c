/* A model on the comparing backend: equal where nothing is wrong; one flipped bit in any op is told, by that op's name alone. */
#include "cli/verify.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/ref/ref.h"
#include "tensor/compare.h"
#include "tensor/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FAMILIES "tests/golden/families/"
enum { N_IDS = 24 };

/* --- a backend that flips the lowest bit of what one call of one op gives --- */

static struct {
    enum compare_op op; /* COMPARE_OP_COUNT: none */
    int64_t call;       /* from 1 */
    int64_t n_calls;
    const struct backend_ops *good;
} fault;

static bool is_now(enum compare_op op)
{
    return fault.op == op && ++fault.n_calls == fault.call;
}

static void flip(enum compare_op op, struct tensor y)
{
    if (is_now(op))
        ((unsigned char *)(y.data + (y.rows - 1) * y.stride + y.cols - 1))[0] ^= 1;
}

static void bad_embed(struct backend *be, struct tensor y, const struct weight *w,
                      const int32_t *ids)
{
    fault.good->embed(be, y, w, ids);
    flip(COMPARE_OP_EMBED, y);
}

static void bad_linear(struct backend *be, struct tensor y, struct tensor x, const struct weight *w)
{
    fault.good->linear(be, y, x, w);
    flip(COMPARE_OP_LINEAR, y);
}

static void bad_linear_many(struct backend *be, int n, const struct tensor *y, struct tensor x,
                            const struct weight *const *w)
{
    fault.good->linear_many(be, n, y, x, w);
    for (int i = 0; i < n; i++)
        flip(COMPARE_OP_LINEAR, y[i]);
}

static void bad_rms_norm(struct backend *be, struct tensor y, struct tensor x, const float *w,
                         int n, float eps)
{
    fault.good->rms_norm(be, y, x, w, n, eps);
    flip(COMPARE_OP_RMS_NORM, y);
}

static void bad_l2_norm(struct backend *be, struct tensor y, struct tensor x, int n, float eps,
                        float scale)
{
    fault.good->l2_norm(be, y, x, n, eps, scale);
    flip(COMPARE_OP_L2_NORM, y);
}

static void bad_rope(struct backend *be, struct tensor x, const struct rope *r, int head_dim,
                     const int32_t *pos)
{
    fault.good->rope(be, x, r, head_dim, pos);
    flip(COMPARE_OP_ROPE, x);
}

static void bad_kv_store(struct backend *be, struct kv_layer *kv, struct tensor k, struct tensor v,
                         const struct seq_view *seqs, int n_seqs)
{
    fault.good->kv_store(be, kv, k, v, seqs, n_seqs);
    if (is_now(COMPARE_OP_KV_STORE))
        kv->data[fault.good->kv_page_bytes(be, kv->type, kv->n_kv_heads, kv->head_dim) *
                 (size_t)seqs[0].pages[seqs[0].pos0 / KV_PAGE_TOKENS]] ^= 1;
}

static void bad_attention(struct backend *be, struct tensor out, struct tensor q,
                          const struct kv_layer *kv, const struct seq_view *seqs, int n_seqs,
                          const struct attn_params *p)
{
    fault.good->attention(be, out, q, kv, seqs, n_seqs, p);
    flip(COMPARE_OP_ATTENTION, out);
}

static void bad_glu(struct backend *be, struct tensor y, struct tensor gate, struct tensor up,
                    enum glu_kind kind)
{
    fault.good->glu(be, y, gate, up, kind);
    flip(COMPARE_OP_GLU, y);
}

static void bad_add(struct backend *be, struct tensor y, struct tensor x)
{
    fault.good->add(be, y, x);
    flip(COMPARE_OP_ADD, y);
}

static void bad_copy(struct backend *be, struct tensor y, struct tensor x)
{
    fault.good->copy(be, y, x);
    flip(COMPARE_OP_COPY, y);
}

static void bad_gate_rows(struct backend *be, struct tensor y, struct tensor g)
{
    fault.good->gate_rows(be, y, g);
    flip(COMPARE_OP_GATE_ROWS, y);
}

static void bad_root_dots(struct backend *be, struct tensor y, struct tensor a, struct tensor b,
                          float scale)
{
    fault.good->root_dots(be, y, a, b, scale);
    flip(COMPARE_OP_ROOT_DOTS, y);
}

static void bad_gather(struct backend *be, struct tensor y, struct tensor x, const int32_t *rows)
{
    fault.good->gather(be, y, x, rows);
    flip(COMPARE_OP_GATHER, y);
}

static void bad_scatter_add(struct backend *be, struct tensor y, struct tensor x,
                            const int32_t *rows, const float *w, const uint8_t *is_first)
{
    fault.good->scatter_add(be, y, x, rows, w, is_first);
    flip(COMPARE_OP_SCATTER_ADD,
         (struct tensor){ y.data + rows[x.rows - 1] * y.stride, 1, y.cols, y.stride });
}

static void bad_route(struct backend *be, struct tensor logits, const struct route *r, int32_t *ids,
                      float *w)
{
    fault.good->route(be, logits, r, ids, w);
    if (is_now(COMPARE_OP_ROUTE))
        ((unsigned char *)w)[0] ^= 1;
}

static void bad_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                          struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    fault.good->conv_silu(be, y, x, w, st, seqs, n_seqs);
    if (is_now(COMPARE_OP_CONV_SILU)) /* in the state that it leaves */
        ((unsigned char *)(st->conv + (int64_t)seqs[0].slot * (st->taps - 1) * st->conv_cols))[0] ^=
            1;
}

static void bad_delta_gates(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                            const float *s)
{
    fault.good->delta_gates(be, a, b, bias, s);
    flip(COMPARE_OP_DELTA_GATES, b);
}

static void bad_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                           struct tensor v, struct tensor decay, struct tensor beta,
                           struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    fault.good->delta_rule(be, out, q, k, v, decay, beta, st, seqs, n_seqs);
    if (is_now(COMPARE_OP_DELTA_RULE))
        ((unsigned char *)(st->matrix + (int64_t)seqs[0].slot * st->n_heads * st->key_dim *
                                            st->value_dim))[0] ^= 1;
}

static void bad_failed(struct backend *be, uint8_t *flags)
{
    fault.good->failed(be, flags);
    if (is_now(COMPARE_OP_FAILED))
        flags[0] ^= 1;
}

static void bad_exp_scaled(struct backend *be, float *y, const float *x, int64_t n, float max,
                           float t)
{
    fault.good->exp_scaled(be, y, x, n, max, t);
    flip(COMPARE_OP_EXP_SCALED, tensor_of(y, 1, n));
}

static int64_t bad_argmax(struct backend *be, const float *x, int64_t n, bool *finite)
{
    int64_t i = fault.good->argmax(be, x, n, finite);
    return is_now(COMPARE_OP_ARGMAX) ? (i + 1) % n : i;
}

static struct backend_ops bad_ops(const struct backend_ops *good)
{
    struct backend_ops ops = *good;
    fault.good = good;
    ops.embed = bad_embed;
    ops.linear = bad_linear;
    ops.linear_many = bad_linear_many;
    ops.rms_norm = bad_rms_norm;
    ops.l2_norm = bad_l2_norm;
    ops.rope = bad_rope;
    ops.kv_store = bad_kv_store;
    ops.attention = bad_attention;
    ops.glu = bad_glu;
    ops.add = bad_add;
    ops.copy = bad_copy;
    ops.gate_rows = bad_gate_rows;
    ops.root_dots = bad_root_dots;
    ops.gather = bad_gather;
    ops.scatter_add = bad_scatter_add;
    ops.route = bad_route;
    ops.conv_silu = bad_conv_silu;
    ops.delta_gates = bad_delta_gates;
    ops.delta_rule = bad_delta_rule;
    ops.failed = bad_failed;
    ops.exp_scaled = bad_exp_scaled;
    ops.argmax = bad_argmax;
    return ops;
}

/* --- a model on it --- */

struct world {
    struct backend_ops ops; /* of the fast backend: the faulty ones */
    struct backend *be;
    struct weights *weights;
    struct model *model;
    int32_t ids[N_IDS], n_steps;
};

static void must(enum err_code code, const struct err *err)
{
    if (code)
        fail_msg("%s", err->text);
}

static void world_open(struct world *w, const char *file, bool has_oracle)
{
    struct err err = { 0 };
    struct cpu_options co = { .threads = 1 };
    struct compare_options o = { 0 };
    must(cpu_backend_open(&co, &o.fast, &err), &err);
    w->ops = bad_ops(o.fast->ops);
    o.fast->ops = &w->ops;
    if (has_oracle)
        must(ref_backend_open(&o.oracle, &err), &err);
    must(compare_backend_open(&o, &w->be, &err), &err);
    must(weights_open(file, &w->weights, &err), &err);
    struct model_load_options mo = { .weights = w->weights, .be = w->be };
    must(model_load(&mo, &w->model, &err), &err);
    for (int i = 0; i < N_IDS; i++)
        w->ids[i] = (int32_t)((i * 37 + i * i * 11) % (w->model->n_vocab - 8));
}

static void world_close(struct world *w)
{
    model_free(w->model);
    weights_close(w->weights);
    w->be->ops->close(w->be);
}

static void run(struct world *w, enum dtype cache_type)
{
    struct err err = { 0 };
    must(verify_run_ops(w->model, cache_type, w->ids, N_IDS, &w->n_steps, &err), &err);
}

static void no_fault(void)
{
    fault.op = COMPARE_OP_COUNT;
    fault.n_calls = 0;
}

static const char *const files[] = {
    "tests/golden/tiny/llama.gguf",
    "tests/golden/tiny/qwen2-kq.gguf",
    "tests/golden/tiny/gemma3.gguf",
    FAMILIES "gpt-oss.gguf",
    FAMILIES "qwen35moe.gguf",
    FAMILIES "starcoder2.gguf",
    FAMILIES "qwen4exp.gguf",
    FAMILIES "gemma4.gguf",
    FAMILIES "minicpm.gguf",
    "tests/golden/mlx/llama-mixed",
    "tests/golden/mlx/qwen2-3-64",
    FAMILIES "hf/gpt-oss-mxfp4",
    FAMILIES "hf/gemma4-moe",
    FAMILIES "hf/qwen35moe",
    FAMILIES "hf/llama3",
};

static void a_healthy_backend_is_equal(void **state)
{
    static const enum dtype types[] = { DTYPE_F16, DTYPE_KV_Q8, DTYPE_KV_Q4, DTYPE_F32 };
    no_fault();
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct world w;
        int64_t before = mem_bytes(MEM_CAT_SCRATCH);
        world_open(&w, files[i], true);
        run(&w, types[i % ARRAY_LEN(types)]);
        assert_int_equal(verify_n_different(w.be), 0);
        int64_t n = 0;
        const struct compare_result *r;
        for (int k = 0; (r = compare_result_at(w.be, k)) != NULL; k++) {
            assert_true(r->n_calls > 0 && r->n_elements > 0 && r->max_diff == 0);
            n += r->n_elements;
        }
        assert_true(n > 10000);
        assert_int_equal(w.n_steps, 7); /* 12, 7, 1, four of 1 */
        world_close(&w);
        assert_int_equal(mem_bytes(MEM_CAT_SCRATCH), before);
    }
}

static void check_fault(const char *file, enum compare_op op, int64_t call)
{
    struct world w;
    const struct compare_result *r;
    no_fault();
    fault.op = op;
    fault.call = call;
    world_open(&w, file, true);
    run(&w, DTYPE_F16);
    assert_true(fault.n_calls >= call);
    assert_int_equal(verify_n_different(w.be), 1);
    for (int i = 0; (r = compare_result_at(w.be, i)) != NULL; i++) {
        if (r->n_different == 0)
            continue;
        assert_string_equal(compare_op_name(r->op), compare_op_name(op));
        assert_int_equal(r->n_different, 1);
        assert_true(r->first.call >= 1 && r->first.call <= call); /* calls count by type */
        assert_in_range(r->first.layer, 0, w.model->n_layers);
        assert_true(r->first.row < r->first.rows && r->first.col < r->first.cols);
        if (op == COMPARE_OP_LINEAR || op == COMPARE_OP_EMBED)
            assert_true(strlen(r->first.name) > 0);
    }
    struct buf text;
    buf_init(&text, MEM_CAT_BASE, 1 << 16);
    verify_print_ops(w.be, &text);
    assert_non_null(strstr(text.data, "by ref"));
    buf_release(&text);
    world_close(&w);
}

static void one_flipped_bit_is_told_by_the_name_of_its_op(void **state)
{
    static const enum compare_op dense[] = {
        COMPARE_OP_EMBED,    COMPARE_OP_LINEAR,    COMPARE_OP_RMS_NORM,   COMPARE_OP_ROPE,
        COMPARE_OP_KV_STORE, COMPARE_OP_ATTENTION, COMPARE_OP_GLU,        COMPARE_OP_ADD,
        COMPARE_OP_GATHER,   COMPARE_OP_ARGMAX,    COMPARE_OP_EXP_SCALED,
    };
    static const enum compare_op hybrid[] = {
        COMPARE_OP_L2_NORM,    COMPARE_OP_COPY,  COMPARE_OP_CONV_SILU, COMPARE_OP_DELTA_GATES,
        COMPARE_OP_DELTA_RULE, COMPARE_OP_ROUTE, COMPARE_OP_GATE_ROWS, COMPARE_OP_SCATTER_ADD,
    };
    for (size_t i = 0; i < ARRAY_LEN(dense); i++)
        for (int64_t call = 1; call <= 2; call++)
            check_fault("tests/golden/tiny/llama.gguf", dense[i], call);
    for (size_t i = 0; i < ARRAY_LEN(hybrid); i++)
        for (int64_t call = 1; call <= 6; call += 5)
            check_fault(FAMILIES "qwen35moe.gguf", hybrid[i], call);
    for (int64_t call = 1; call <= 2; call++)
        check_fault(FAMILIES "qwen4exp.gguf", COMPARE_OP_ROOT_DOTS, call);
}

static void a_wrong_flag_is_told(void **state)
{
    struct world w;
    struct err err = { 0 };
    no_fault();
    fault.op = COMPARE_OP_FAILED;
    fault.call = 1;
    world_open(&w, "tests/golden/tiny/llama.gguf", true);
    assert_int_equal(verify_run_ops(w.model, DTYPE_F16, w.ids, N_IDS, &w.n_steps, &err), ERR_OK);
    assert_int_equal(verify_n_different(w.be), 1);
    world_close(&w);
}

/* A trace: every op is told with its result, nothing is compared, and faults go unseen. */
static void told(void *ctx, const struct compare_event *e)
{
    int64_t *n = ctx;
    n[e->op]++;
    assert_int_equal(e->n_different, 0);
    assert_non_null(e->name);
}

static void without_an_oracle_ops_are_only_told(void **state)
{
    int64_t n[COMPARE_OP_COUNT] = { 0 };
    struct err err = { 0 };
    struct compare_options o = { .on_op = told, .ctx = n };
    struct cpu_options co = { .threads = 2 };
    struct world w;
    no_fault();
    must(cpu_backend_open(&co, &o.fast, &err), &err);
    must(compare_backend_open(&o, &w.be, &err), &err);
    must(weights_open("tests/golden/tiny/llama.gguf", &w.weights, &err), &err);
    struct model_load_options mo = { .weights = w.weights, .be = w.be };
    must(model_load(&mo, &w.model, &err), &err);
    for (int i = 0; i < N_IDS; i++)
        w.ids[i] = i;
    run(&w, DTYPE_F16);
    assert_int_equal(n[COMPARE_OP_EMBED], w.n_steps);
    assert_int_equal(n[COMPARE_OP_ATTENTION], w.n_steps * w.model->n_layers);
    assert_int_equal(verify_n_different(w.be), 0);
    assert_string_equal(w.be->ops->name, "trace");
    world_close(&w);
}

/* Each slot that ref has from embed to argmax is there: an op that is added to backend.h must be added to compare_ops.c. */
static void every_op_of_ref_is_compared(void **state)
{
    struct world w;
    struct backend *ref;
    struct err err;
    no_fault();
    world_open(&w, "tests/golden/tiny/llama.gguf", true);
    must(ref_backend_open(&ref, &err), &err);
    for (size_t at = offsetof(struct backend_ops, alloc); at < sizeof(struct backend_ops);
         at += sizeof(void *)) {
        void *theirs, *ours;
        memcpy(&theirs, (const char *)ref->ops + at, sizeof(theirs));
        memcpy(&ours, (const char *)w.be->ops + at, sizeof(ours));
        if (theirs && !ours)
            fail_msg("slot at %zu is missing", at);
    }
    for (int op = 0; op < COMPARE_OP_COUNT; op++)
        assert_non_null(compare_op_name((enum compare_op)op));
    ref->ops->close(ref);
    world_close(&w);
}

/* Out of memory at any allocation: an error, and nothing is left behind. */
static void running_out_of_memory_is_an_error(void **state)
{
    int n_failed = 0;
    no_fault();
    for (int64_t i = 1; i < 400; i += i < 40 ? 1 : 17) {
        struct world w;
        struct err err = { 0 };
        int64_t before = mem_bytes(MEM_CAT_SCRATCH), weights = mem_bytes(MEM_CAT_WEIGHTS);
        world_open(&w, "tests/golden/tiny/llama.gguf", true);
        mem_fail_nth(i);
        enum err_code code = verify_run_ops(w.model, DTYPE_F16, w.ids, N_IDS, &w.n_steps, &err);
        mem_fail_nth(0);
        assert_true(code == ERR_OK || code == ERR_NOMEM);
        n_failed += code == ERR_NOMEM;
        world_close(&w);
        assert_int_equal(mem_bytes(MEM_CAT_SCRATCH), before);
        assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), weights);
    }
    assert_true(n_failed > 20);
}

/* --- files of log probabilities --- */

static void a_file_of_log_probabilities_reads_back(void **state)
{
    char path[] = "/tmp/t_compare_XXXXXX";
    struct kld_file k;
    struct err err = { 0 };
    static const int32_t ids[8] = { 0, 1, 2, 3, 4, 3, 2, 1 };
    static const float row[5] = { -0.1f, -30, -2.5f, -9, -4 };
    float back[5];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_false(kld_file_is(path));
    must(kld_file_create(&k, path, 5, 4, 2, ids, &err), &err);
    for (int i = 0; i < 2; i++)
        must(kld_file_write(&k, row, &err), &err);
    must(kld_file_close(&k, &err), &err);
    assert_true(kld_file_is(path));
    must(kld_file_open(&k, path, &err), &err);
    assert_int_equal(k.n_vocab, 5);
    assert_int_equal(k.window, 4);
    assert_int_equal(k.n_windows, 2);
    assert_memory_equal(k.ids, ids, sizeof(ids));
    for (int i = 0; i < 2; i++) {
        must(kld_file_read(&k, back, &err), &err);
        for (int j = 0; j < 5; j++)
            if (j != 1)
                assert_float_equal(back[j], row[j], 16.0f / 65535);
        assert_true((double)back[1] <= KLD_FILE_FLOOR);
    }
    assert_int_equal(kld_file_read(&k, back, &err), ERR_INVALID); /* it ends */
    must(kld_file_close(&k, &err), &err);
    for (long n = 0; n < 60; n++) { /* cut anywhere in the head */
        assert_int_equal(truncate(path, 59 - n), 0);
        enum err_code code = kld_file_open(&k, path, &err);
        assert_true(code == ERR_INVALID || code == ERR_OK);
        must(kld_file_close(&k, &err), &err);
    }
    unlink(path);
    assert_int_equal(kld_file_open(&k, path, &err), ERR_NOT_FOUND);
    must(kld_file_close(&k, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_healthy_backend_is_equal),
        cmocka_unit_test(one_flipped_bit_is_told_by_the_name_of_its_op),
        cmocka_unit_test(a_wrong_flag_is_told),
        cmocka_unit_test(without_an_oracle_ops_are_only_told),
        cmocka_unit_test(every_op_of_ref_is_compared),
        cmocka_unit_test(running_out_of_memory_is_an_error),
        cmocka_unit_test(a_file_of_log_probabilities_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
