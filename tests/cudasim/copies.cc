/* copies.cc - copies to shared memory that end late, and the barriers that tell (PTX ISA: cp.async, cp.async.bulk, mbarrier). A copy may land
 * at any time between its begin and the wait for it: by turns these land at once or only then. */
#include "sim.h"

namespace cudasim
{

/* What the eight bytes of a barrier are. */
struct barrier {
    uint16_t phase;
    uint8_t expected, pending;
    int32_t bytes; /* that are to come */
};

static fiber &self()
{
    return now->fibers[now->self];
}

static void check_place(const void *dst, const void *src, int bytes)
{
    if (((uintptr_t)dst | (uintptr_t)src | (uintptr_t)bytes) % 16)
        fail("a copy of %d bytes from %p to %p: all must be multiples of 16", bytes, src, dst);
}

void copy16(void *dst, const void *src)
{
    check_place(dst, src, 16);
    if (now->copies_are_late)
        self().copies.push_back({ dst, src, self().group });
    else
        memcpy(dst, src, 16);
}

void copy_group()
{
    self().group++;
}

/* Land the copies of groups below `end`. */
static void land(fiber &f, int end)
{
    size_t n = 0;
    for (; n < f.copies.size() && f.copies[n].group < end; n++)
        memcpy(f.copies[n].dst, f.copies[n].src, 16);
    f.copies.erase(f.copies.begin(), f.copies.begin() + (ptrdiff_t)n);
}

void copy_wait(int n)
{
    land(self(), self().group - n);
}

void copy_wait_all()
{
    land(self(), ++self().group);
}

void end_copies(fiber *f)
{
    land(*f, f->group + 1);
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

static bool land_of(std::vector<bulk> &bulks, const uint64_t *bar)
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

bool land_late_copies(block *b)
{
    return land_of(b->bulks, NULL);
}

static bool has_passed(const void *at, unsigned parity)
{
    return (((const barrier *)at)->phase & 1u) != parity;
}

void bar_wait(uint64_t *bar, int parity)
{
    land_of(now->bulks, bar);
    wait_until(has_passed, bar, (unsigned)parity);
}

void copy_bulk(void *dst, const void *src, int bytes, uint64_t *bar)
{
    check_place(dst, src, bytes);
    bulk c = { dst, src, bytes, bar };
    if (now->copies_are_late)
        now->bulks.push_back(c);
    else
        land(c);
}

} // namespace cudasim
