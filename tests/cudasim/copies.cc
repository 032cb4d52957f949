/* copies.cc - copies to shared memory that end late, and the barriers that tell (PTX ISA: cp.async, cp.async.bulk, mbarrier). A copy may land
 * at any time between its begin and the wait for it: by turns these land at once or only then. */
#include "sim.h"

#include <vector>

namespace cudasim
{

bool copies_are_late;

struct copy {
    void *dst;
    const void *src;
    int group;
};

/* A thread's copies under way, oldest first; `group` is that of the next one. */
struct queue {
    std::vector<copy> copies;
    int group;
};

struct bulk {
    void *dst;
    const void *src;
    int bytes;
    uint64_t *bar;
};

/* What the eight bytes of a barrier are. */
struct barrier {
    uint16_t phase;
    uint8_t expected, pending;
    int32_t bytes; /* that are to come */
};

static queue queues[1024];
static std::vector<bulk> bulks;

static void check_place(const void *dst, const void *src, int bytes)
{
    if (((uintptr_t)dst | (uintptr_t)src | (uintptr_t)bytes) % 16)
        fail("a copy of %d bytes from %p to %p: all must be multiples of 16", bytes, src, dst);
}

void copy16(void *dst, const void *src)
{
    check_place(dst, src, 16);
    if (copies_are_late)
        queues[this_thread()].copies.push_back({ dst, src, queues[this_thread()].group });
    else
        memcpy(dst, src, 16);
}

void copy_group()
{
    queues[this_thread()].group++;
}

/* Land the copies of groups below `end`. */
static void land(queue &q, int end)
{
    size_t n = 0;
    for (; n < q.copies.size() && q.copies[n].group < end; n++)
        memcpy(q.copies[n].dst, q.copies[n].src, 16);
    q.copies.erase(q.copies.begin(), q.copies.begin() + (ptrdiff_t)n);
}

void copy_wait(int n)
{
    queue &q = queues[this_thread()];
    land(q, q.group - n);
}

void copy_wait_all()
{
    queue &q = queues[this_thread()];
    land(q, ++q.group);
}

void end_thread(int thread)
{
    land(queues[thread], queues[thread].group + 1);
    queues[thread].group = 0;
}

/* --- barriers --- */

static void settle(barrier *b)
{
    if (b->pending > 0 || b->bytes != 0)
        return;
    b->phase++;
    b->pending = b->expected;
    note_progress();
}

void bar_init(uint64_t *bar, int count)
{
    barrier b = { 0, (uint8_t)count, (uint8_t)count, 0 };
    memcpy(bar, &b, sizeof(b));
}

void bar_arrive(uint64_t *bar, int bytes)
{
    barrier *b = (barrier *)bar;
    if (b->pending == 0)
        fail("one arrival too many at a barrier of %d", b->expected);
    b->bytes += bytes;
    b->pending--;
    note_progress();
    settle(b);
}

static void land(const bulk &c)
{
    barrier *b = (barrier *)c.bar;
    memcpy(c.dst, c.src, (size_t)c.bytes);
    b->bytes -= c.bytes;
    settle(b);
}

static bool land_of(const uint64_t *bar)
{
    bool any = false;
    for (size_t i = 0; i < bulks.size();) {
        if (bar && bulks[i].bar != bar) {
            i++;
            continue;
        }
        bulk c = bulks[i];
        bulks.erase(bulks.begin() + (ptrdiff_t)i);
        land(c);
        any = true;
    }
    return any;
}

bool land_late_copies()
{
    return land_of(NULL);
}

static bool has_passed(const void *at, unsigned parity)
{
    return (((const barrier *)at)->phase & 1u) != parity;
}

void bar_wait(uint64_t *bar, int parity)
{
    land_of(bar);
    wait_until(has_passed, bar, (unsigned)parity);
}

void copy_bulk(void *dst, const void *src, int bytes, uint64_t *bar)
{
    check_place(dst, src, bytes);
    bulk c = { dst, src, bytes, bar };
    if (copies_are_late)
        bulks.push_back(c);
    else
        land(c);
}

void end_block()
{
    if (!bulks.empty())
        fail("%zu bulk copies that nobody has waited for", bulks.size());
}

} // namespace cudasim
