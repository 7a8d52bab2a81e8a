/* The example of the documentation: what a compiler pastes to plan a scratchpad. */
#include <loadmaster/allocate.h>

#include <stdio.h>

int main(void) {
    const loadmaster_buffer buffers[] = {
        /* size, alignment, start, end */
        {600, 64, 0, 4, 0, 0, 0, 0},
        {300, 64, 2, 6, 0, 0, 0, 0},
        {800, 64, 5, 9, 0, 0, 0, 0},
    };
    const size_t count = sizeof buffers / sizeof *buffers;
    const loadmaster_problem problem = {.buffers = buffers, .buffer_count = count};
    int64_t offsets[3];
    loadmaster_result result;

    loadmaster_allocate(&problem, NULL, offsets, NULL, &result);
    if (result.status != LOADMASTER_OPTIMAL && result.status != LOADMASTER_FEASIBLE) {
        fprintf(stderr, "%s: %s\n", loadmaster_status_name(result.status), result.message);
        return 1;
    }
    printf("peak %lld, at least %lld, %s\n", (long long)result.peak, (long long)result.bound,
        loadmaster_status_name(result.status));
    for (size_t i = 0; i < count; ++i) printf("buffer %zu at %lld\n", i, (long long)offsets[i]);
    return loadmaster_verify(&problem, offsets, NULL) ? 0 : 1;
}
