/* Arrays that kernels read and write, and the part of a result that a kernel makes. */
#ifndef ARRAYS_H
#define ARRAYS_H

#include <stddef.h>
#include <stdint.h>

enum { MOST_DIMENSIONS = 8, MOST_OPERANDS = 64 };

enum type { FLOAT, INT64, INT32, UINT8, BOOL };

/* An array of a shape, the last dimension fastest, without gaps. */
struct array {
    enum type type;
    int rank;
    int64_t shape[MOST_DIMENSIONS];
    void *data;
};

/* One use of a kernel: operands (null: absent), the result, the part [first, last) of the result to make, and attributes.
   A product adds the terms [first_term, last_term) to the sums that are in the result, if these are not the first terms; what follows the
   sum is done with the last term of all. A last_term below 0 stands for all terms. */
struct call {
    int count;
    const struct array *const *operands;
    const struct array *result;
    const int64_t *first, *last;
    int64_t first_term, last_term;
    const int64_t *integers;
    const double *reals;
};

typedef void kernel(const struct call *call);

size_t type_bytes(enum type type);
int64_t elements(const struct array *array);

/* Moves on to the next place of the part [first, last), the last dimension fastest; 0 after the last place. */
int next(int64_t *place, const int64_t *first, const int64_t *last, int rank);

/* Says what is wrong and ends the program. */
void fail(const char *what, const char *name);

#endif
