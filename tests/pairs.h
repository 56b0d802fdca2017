/* SPDX-License-Identifier: MIT
 * pairs.h - few rows of a table that have every pair of values, in two of its columns, that the whole table has. */
#ifndef TEGULA_TEST_PAIRS_H
#define TEGULA_TEST_PAIRS_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>

/* shared(table, v, w): a bit for each column of row v whose value row w has, too; of at most 64 columns.
 * Chosen are row 0 and then, greedily, the one with the most pairs that no chosen row has. */
static inline void choose_pairs(int num_rows, uint64_t (*shared)(const void *table, int v, int w), const void *table,
                                bool *is_chosen)
{
    uint64_t (*met)[64] = calloc((size_t)num_rows, sizeof *met); /* bit j of met[v][i]: columns i and j of v have met */
    if (!met) abort();
    for (int v = 0; v < num_rows; v++) is_chosen[v] = false;
    for (int next = 0, most = num_rows > 0; most;) {
        const int chosen = next;
        is_chosen[chosen] = true;
        most = 0;
        for (int v = 0; v < num_rows; v++) {
            const uint64_t all = shared(table, v, v), same = shared(table, v, chosen);
            int new_pairs = 0;
            for (int i = 0; i < 64; i++) {
                if (same >> i & 1) met[v][i] |= same;
                if (all >> i & 1) new_pairs += __builtin_popcountll(all & ~met[v][i]);
            }
            if (new_pairs > most) most = new_pairs, next = v;
        }
    }
    free(met);
}

#endif
