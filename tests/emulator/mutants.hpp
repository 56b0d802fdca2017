/* SPDX-License-Identifier: MIT
 * mutants.hpp - comparisons of a kernel that the test program can move by one while it runs (../mutants.c).
 *
 * mutate.py puts this before a kernel's text and makes `a <= emu_less{ 17 } <= b` of a < b, and emu_less_equal of <=: the
 * precedence is the same, and there is no > that could end a list of template arguments. A kernel is compiled once for all
 * of its mutants. Both forms differ only where a == b, so the table also says which mutants can matter at all. Constant
 * expressions stay as they are. */
#ifndef EMU_MUTANTS
#define EMU_MUTANTS

extern "C" char *getenv(const char *) noexcept;
extern "C" unsigned long long strtoull(const char *, char **, int) noexcept;

struct emu_mutants { int chosen; unsigned char seen[4092]; };   /* as in ../mutants.c */
static emu_mutants *const emu_mutants_table = [] {
    const char *text = getenv("TEGULA_TEST_MUTANTS_AT");
    return text ? (emu_mutants *)strtoull(text, nullptr, 16) : nullptr;
}();

struct emu_less { int number; };
struct emu_less_equal { int number; };
template <class A> struct emu_compared { A a; int number; bool or_equal; };

template <class A> constexpr __forceinline__ emu_compared<A> operator<=(A a, emu_less l) { return { a, l.number, false }; }
template <class A> constexpr __forceinline__ emu_compared<A> operator<=(A a, emu_less_equal l)
{
    return { a, l.number, true };
}
template <class A, class B> constexpr __forceinline__ bool operator<=(emu_compared<A> left, B b)
{
    if (!__builtin_is_constant_evaluated() && emu_mutants_table) {
        emu_mutants_table->seen[left.number] |= left.a == b ? 3 : 1;
        if (left.a == b && emu_mutants_table->chosen == left.number) return !left.or_equal;
    }
    return left.or_equal ? left.a <= b : left.a < b;
}
#endif
