#include "engine/kv_pool.h"
#include "tensor/backend.h"

enum err_code kv_pool_init(struct kv_pool *p, int32_t n_pages, struct err *err)
{
    *p = (struct kv_pool){ .n_pages = n_pages, .n_free = n_pages };
    p->free_list = mem_try_array(MEM_CAT_KV, (size_t)n_pages, sizeof(*p->free_list));
    p->refs = mem_try_array(MEM_CAT_KV, (size_t)n_pages, sizeof(*p->refs));
    p->is_kept = mem_try_array(MEM_CAT_KV, (size_t)n_pages, sizeof(*p->is_kept));
    if (!p->free_list || !p->refs || !p->is_kept) {
        kv_pool_release(p);
        return err_set(err, ERR_NOMEM, "cache: no memory for the lists of %d pages", n_pages);
    }
    for (int32_t i = 0; i < n_pages; i++)
        p->free_list[i] = n_pages - 1 - i; /* the lowest page is taken first */
    return ERR_OK;
}

void kv_pool_release(struct kv_pool *p)
{
    mem_free(MEM_CAT_KV, p->free_list);
    mem_free(MEM_CAT_KV, p->refs);
    mem_free(MEM_CAT_KV, p->is_kept);
    *p = (struct kv_pool){ 0 };
}

enum err_code kv_table_init(struct kv_table *t, int32_t cap, struct err *err)
{
    *t = (struct kv_table){ .cap = cap };
    t->pages = mem_try_array(MEM_CAT_KV, (size_t)cap, sizeof(*t->pages));
    if (!t->pages)
        return err_set(err, ERR_NOMEM, "cache: no memory for a table of %d pages", cap);
    for (int32_t i = 0; i < cap; i++)
        t->pages[i] = -1;
    return ERR_OK;
}

void kv_table_release(struct kv_table *t)
{
    BUG_ON(t->n > t->first || t->n_reserved > 0);
    mem_free(MEM_CAT_KV, t->pages);
    *t = (struct kv_table){ 0 };
}

int32_t kv_pages_for(int32_t n_tokens)
{
    return (int32_t)(((int64_t)n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
}

/* One reference more of a page, one less. */
static void page_ref(struct kv_pool *p, int32_t page)
{
    p->n_idle -= p->is_kept[page] && p->refs[page] == 1;
    p->refs[page]++;
}

static void page_unref(struct kv_pool *p, int32_t page)
{
    p->refs[page]--;
    p->n_idle += p->is_kept[page] && p->refs[page] == 1;
}

/* Drop the reference of entry i; a page that becomes free stays promised to the table. */
static void kv_table_give_up(struct kv_pool *p, struct kv_table *t, int32_t i)
{
    int32_t page = t->pages[i];
    t->pages[i] = -1;
    BUG_ON(page < 0 || p->refs[page] < 1);
    page_unref(p, page);
    if (p->refs[page] > 0)
        return; /* others hold it: the claim shrinks, as a shared page was not paid by this table alone */
    p->free_list[p->n_free++] = page;
    t->n_reserved++;
    p->n_reserved++;
}

void kv_table_reset(struct kv_pool *p, struct kv_table *t)
{
    for (int32_t i = t->first; i < t->n; i++)
        kv_table_give_up(p, t, i);
    p->n_reserved -= t->n_reserved;
    t->n_reserved = 0;
    t->first = 0;
    t->n = 0;
}

enum err_code kv_table_reserve(struct kv_pool *p, struct kv_table *t, int32_t n, struct err *err)
{
    if (n > p->n_free - p->n_reserved)
        return err_set(err, ERR_FULL, "cache: %d pages of %d tokens are wanted, %d of %d are free",
                       n, KV_PAGE_TOKENS, p->n_free - p->n_reserved, p->n_pages);
    t->n_reserved += n;
    p->n_reserved += n;
    return ERR_OK;
}

int32_t kv_table_room(const struct kv_table *t)
{
    int64_t room = ((int64_t)t->n + t->n_reserved) * KV_PAGE_TOKENS;
    return room < INT32_MAX ? (int32_t)room : INT32_MAX;
}

enum err_code kv_table_extend(struct kv_pool *p, struct kv_table *t, int32_t n_tokens,
                              struct err *err)
{
    int32_t n = kv_pages_for(n_tokens);
    if (n > t->cap)
        return err_set(err, ERR_FULL, "cache: %d tokens are over the longest sequence, %d",
                       n_tokens, t->cap * KV_PAGE_TOKENS);
    if (n_tokens > kv_table_room(t))
        return err_set(err, ERR_STATE, "cache: %d tokens where room for %d is promised", n_tokens,
                       kv_table_room(t));
    while (t->n < n) {
        int32_t page = p->free_list[--p->n_free];
        p->refs[page] = 1;
        t->pages[t->n++] = page;
        t->n_reserved--;
        p->n_reserved--;
    }
    return ERR_OK;
}

void kv_table_truncate(struct kv_pool *p, struct kv_table *t, int32_t n_tokens)
{
    int32_t n = kv_pages_for(n_tokens);
    BUG_ON(n < t->first);
    while (t->n > n)
        kv_table_give_up(p, t, --t->n);
}

void kv_table_drop_below(struct kv_pool *p, struct kv_table *t, int32_t pos)
{
    int32_t first = pos > 0 ? pos / KV_PAGE_TOKENS : 0;
    while (t->first < first && t->first < t->n)
        kv_table_give_up(p, t, t->first++);
}

void kv_table_begin_at(struct kv_table *t, int32_t first)
{
    BUG_ON(t->n != t->first || first < 0 || first > t->cap);
    t->first = first;
    t->n = first;
}

bool kv_table_is_shared(const struct kv_pool *p, const struct kv_table *t, int32_t i)
{
    return i >= t->first && i < t->n && p->refs[t->pages[i]] > 1;
}

void kv_table_share(struct kv_pool *p, struct kv_table *t, const struct kv_table *from, int32_t n)
{
    BUG_ON(t->n != 0 || from->first != 0 || n > from->n || n > t->cap);
    for (int32_t i = 0; i < n; i++) {
        t->pages[i] = from->pages[i];
        page_ref(p, t->pages[i]);
    }
    t->n = n;
}

void kv_table_hold(struct kv_pool *p, struct kv_table *t, const struct kv_table *from)
{
    BUG_ON(t->n != t->first || from->n > t->cap);
    for (int32_t i = from->first; i < from->n; i++) {
        t->pages[i] = from->pages[i];
        kv_pool_hold(p, t->pages[i]);
    }
    t->first = from->first;
    t->n = from->n;
}

static enum err_code kv_table_check(const struct kv_pool *p, const struct kv_table *t,
                                    int32_t table_i, int32_t *seen, struct err *err)
{
    if (t->first < 0 || t->first > t->n || t->n > t->cap || t->n_reserved < 0)
        return err_set(err, ERR_STATE, "table %d: bounds [%d, %d) of %d, %d reserved", table_i,
                       t->first, t->n, t->cap, t->n_reserved);
    for (int32_t i = 0; i < t->cap; i++) {
        bool is_held = i >= t->first && i < t->n;
        if (!is_held && t->pages[i] == -1)
            continue;
        if (!is_held || t->pages[i] < 0 || t->pages[i] >= p->n_pages)
            return err_set(err, ERR_STATE, "table %d: entry %d is page %d, held [%d, %d)", table_i,
                           i, t->pages[i], t->first, t->n);
        seen[t->pages[i]]++;
    }
    return ERR_OK;
}

void kv_pool_hold(struct kv_pool *p, int32_t page)
{
    BUG_ON(page < 0 || page >= p->n_pages || p->refs[page] < 1);
    page_ref(p, page);
}

void kv_pool_drop(struct kv_pool *p, int32_t page)
{
    BUG_ON(page < 0 || page >= p->n_pages || p->refs[page] < 1);
    page_unref(p, page);
    if (p->refs[page] == 0)
        p->free_list[p->n_free++] = page;
}

void kv_pool_keep(struct kv_pool *p, int32_t page)
{
    kv_pool_hold(p, page);
    BUG_ON(p->is_kept[page]);
    p->is_kept[page] = 1;
}

void kv_pool_unkeep(struct kv_pool *p, int32_t page)
{
    BUG_ON(!p->is_kept[page]);
    p->n_idle -= p->refs[page] == 1;
    p->is_kept[page] = 0;
    kv_pool_drop(p, page);
}

int32_t kv_pool_refs(const struct kv_pool *p, int32_t page)
{
    return p->refs[page];
}

enum err_code kv_pool_check(const struct kv_pool *p, const struct kv_table *const *tables,
                            int32_t n_tables, const int32_t *held, struct err *err)
{
    enum err_code code = ERR_OK;
    int64_t reserved = 0;
    int32_t *seen = mem_alloc(MEM_CAT_KV, (size_t)p->n_pages * sizeof(*seen));
    for (int32_t i = 0; i < n_tables && !code; i++) {
        code = kv_table_check(p, tables[i], i, seen, err);
        reserved += tables[i]->n_reserved;
    }
    for (int32_t i = 0; held && i < p->n_pages; i++)
        seen[i] += held[i];
    for (int32_t i = 0; i < p->n_pages && !code; i++)
        if (seen[i] != p->refs[i])
            code = err_set(err, ERR_STATE, "page %d: %d references, %d holders", i, p->refs[i],
                           seen[i]);
    int32_t idle = 0;
    for (int32_t i = 0; i < p->n_pages; i++)
        idle += p->is_kept[i] && p->refs[i] == 1;
    if (!code && idle != p->n_idle)
        code = err_set(err, ERR_STATE, "%d kept pages are idle, %d counted", idle, p->n_idle);
    for (int32_t i = 0; i < p->n_free && !code; i++)
        if (seen[p->free_list[i]]++ != 0)
            code =
                err_set(err, ERR_STATE, "page %d: free and in use, or free twice", p->free_list[i]);
    for (int32_t i = 0; i < p->n_pages && !code; i++)
        if (seen[i] == 0)
            code = err_set(err, ERR_STATE, "page %d: neither free nor referenced", i);
    if (!code && (reserved != p->n_reserved || p->n_reserved > p->n_free))
        code = err_set(err, ERR_STATE, "%d pages reserved, tables say %lld, %d free", p->n_reserved,
                       (long long)reserved, p->n_free);
    mem_free(MEM_CAT_KV, seen);
    return code;
}
