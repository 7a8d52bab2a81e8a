#include "kernels.h"

#include <math.h>
#include <string.h>

/* Places. */

size_t type_bytes(enum type type)
{
    switch (type) {
    case INT64: return 8;
    case UINT8:
    case BOOL: return 1;
    default: return 4;
    }
}

int64_t elements(const struct array *array)
{
    int64_t count = 1;
    for (int d = 0; d < array->rank; d++)
        count *= array->shape[d];
    return count;
}

int next(int64_t *place, const int64_t *first, const int64_t *last, int rank)
{
    for (int d = rank - 1; d >= 0; d--) {
        if (++place[d] < last[d])
            return 1;
        place[d] = first[d];
    }
    return 0;
}

/* Elements between neighbours along every dimension. */
static void strides_of(const struct array *array, int64_t *strides)
{
    int64_t step = 1;
    for (int d = array->rank - 1; d >= 0; d--) {
        strides[d] = step;
        step *= array->shape[d];
    }
}

static int64_t position(const int64_t *place, const int64_t *strides, int rank)
{
    int64_t index = 0;
    for (int d = 0; d < rank; d++)
        index += place[d] * strides[d];
    return index;
}

/* Strides of an operand along the dimensions of a result to which it is broadcast: 0 where it is repeated. */
static void broadcast_strides(const struct array *operand, int rank, int64_t *strides)
{
    int64_t own[MOST_DIMENSIONS];
    strides_of(operand, own);
    for (int d = 0; d < rank; d++) {
        int axis = d - (rank - operand->rank);
        strides[d] = axis < 0 || operand->shape[axis] == 1 ? 0 : own[axis];
    }
}

static void begin(int64_t *place, const struct call *call)
{
    for (int d = 0; d < call->result->rank; d++)
        place[d] = call->first[d];
}

/* Elements of any type, as numbers. */

static double get(const struct array *array, int64_t index)
{
    switch (array->type) {
    case FLOAT: return ((const float *)array->data)[index];
    case INT64: return (double)((const int64_t *)array->data)[index];
    case INT32: return ((const int32_t *)array->data)[index];
    default: return ((const uint8_t *)array->data)[index];
    }
}

static void put(const struct array *array, int64_t index, double value)
{
    switch (array->type) {
    case FLOAT: ((float *)array->data)[index] = (float)value; break;
    case INT64: ((int64_t *)array->data)[index] = isfinite(value) ? (int64_t)value : 0; break;
    case INT32: ((int32_t *)array->data)[index] = isfinite(value) ? (int32_t)(int64_t)value : 0; break;
    case UINT8: ((uint8_t *)array->data)[index] = isfinite(value) ? (uint8_t)(int64_t)value : 0; break;
    case BOOL: ((uint8_t *)array->data)[index] = value != 0; break;
    }
}

static int64_t get_integer(const struct array *array, int64_t index)
{
    return array->type == INT64 ? ((const int64_t *)array->data)[index] : (int64_t)get(array, index);
}

static void copy_element(const struct array *result, int64_t to, const struct array *operand, int64_t from)
{
    size_t bytes = type_bytes(result->type);
    memcpy((char *)result->data + (size_t)to * bytes, (const char *)operand->data + (size_t)from * bytes, bytes);
}

/* Element by element. */

/* A function of one element of each operand. */
typedef double function(const double *x, const struct call *call);

static void each(const struct call *call, function *apply)
{
    const struct array *result = call->result;
    int64_t place[MOST_DIMENSIONS], own[MOST_DIMENSIONS], strides[MOST_OPERANDS][MOST_DIMENSIONS];
    double x[MOST_OPERANDS];
    strides_of(result, own);
    for (int i = 0; i < call->count; i++)
        broadcast_strides(call->operands[i], result->rank, strides[i]);
    begin(place, call);
    do {
        for (int i = 0; i < call->count; i++)
            x[i] = get(call->operands[i], position(place, strides[i], result->rank));
        put(result, position(place, own, result->rank), apply(x, call));
    } while (next(place, call->first, call->last, result->rank));
}

#define ELEMENTWISE(name, value)                                                                                                          \
    static double name##_element(const double *x, const struct call *call)                                                                \
    {                                                                                                                                     \
        (void)call;                                                                                                                       \
        return value;                                                                                                                     \
    }                                                                                                                                     \
    void name(const struct call *call) { each(call, name##_element); }

ELEMENTWISE(identity, x[0])
ELEMENTWISE(negative, -x[0])
ELEMENTWISE(absolute, fabs(x[0]))
ELEMENTWISE(exponential, exp(x[0]))
ELEMENTWISE(logarithm, log(x[0]))
ELEMENTWISE(square_root, sqrt(x[0]))
ELEMENTWISE(reciprocal, 1 / x[0])
ELEMENTWISE(error_function, erf(x[0]))
ELEMENTWISE(hyperbolic_tangent, tanh(x[0]))
ELEMENTWISE(sigmoid, 1 / (1 + exp(-x[0])))
/* reals: alpha, beta */
ELEMENTWISE(hard_sigmoid, fmax(0, fmin(1, call->reals[0] * x[0] + call->reals[1])))
ELEMENTWISE(hard_swish, x[0] * fmax(0, fmin(1, x[0] / 6 + 0.5)))
/* Comparisons are written so that what is not a number stays so. */
ELEMENTWISE(rectifier, x[0] < 0 ? 0 : x[0])
/* reals: alpha */
ELEMENTWISE(leaky_rectifier, x[0] < 0 ? call->reals[0] * x[0] : x[0])
ELEMENTWISE(exponential_rectifier, x[0] < 0 ? call->reals[0] * expm1(x[0]) : x[0])
ELEMENTWISE(softplus, x[0] > 30 ? x[0] : log1p(exp(x[0])))
ELEMENTWISE(softsign, x[0] / (1 + fabs(x[0])))
ELEMENTWISE(sine, sin(x[0]))
ELEMENTWISE(cosine, cos(x[0]))
ELEMENTWISE(floor_of, floor(x[0]))
ELEMENTWISE(ceiling_of, ceil(x[0]))
ELEMENTWISE(sign_of, (x[0] > 0) - (x[0] < 0))
ELEMENTWISE(not_of, x[0] == 0)
ELEMENTWISE(is_nan, isnan(x[0]))
ELEMENTWISE(gelu, x[0] / 2 * (1 + erf(x[0] * 0.70710678118654752)))
ELEMENTWISE(gelu_by_tanh, x[0] / 2 * (1 + tanh(0.79788456080286536 * (x[0] + 0.044715 * x[0] * x[0] * x[0]))))
/* reals: the least and the largest value */
ELEMENTWISE(clip, x[0] < call->reals[0] ? call->reals[0] : x[0] > call->reals[1] ? call->reals[1] : x[0])

static double sum(const double *x, int count)
{
    double total = 0;
    for (int i = 0; i < count; i++)
        total += x[i];
    return total;
}

static double smallest(const double *x, int count)
{
    double least = x[0];
    for (int i = 1; i < count; i++)
        least = x[i] < least || isnan(x[i]) ? x[i] : least;
    return least;
}

static double largest(const double *x, int count)
{
    double most = x[0];
    for (int i = 1; i < count; i++)
        most = x[i] > most || isnan(x[i]) ? x[i] : most;
    return most;
}

ELEMENTWISE(add, sum(x, call->count))
ELEMENTWISE(mean_of, sum(x, call->count) / call->count)
ELEMENTWISE(minimum, smallest(x, call->count))
ELEMENTWISE(maximum, largest(x, call->count))
ELEMENTWISE(subtract, x[0] - x[1])
ELEMENTWISE(multiply, x[0] * x[1])
ELEMENTWISE(divide, x[0] / x[1])
ELEMENTWISE(power, pow(x[0], x[1]))
ELEMENTWISE(and_of, x[0] != 0 && x[1] != 0)
ELEMENTWISE(or_of, x[0] != 0 || x[1] != 0)
ELEMENTWISE(xor_of, (x[0] != 0) != (x[1] != 0))
ELEMENTWISE(equal, x[0] == x[1])
ELEMENTWISE(less, x[0] < x[1])
ELEMENTWISE(less_or_equal, x[0] <= x[1])
ELEMENTWISE(greater, x[0] > x[1])
ELEMENTWISE(greater_or_equal, x[0] >= x[1])
ELEMENTWISE(sloped_rectifier, x[0] < 0 ? x[0] * x[1] : x[0])
ELEMENTWISE(where, x[0] != 0 ? x[1] : x[2])
/* Operands: x, scale, bias, mean, variance; reals: epsilon */
ELEMENTWISE(batch_normalization, (x[0] - x[3]) / sqrt(x[4] + call->reals[0]) * x[1] + x[2])

/* Products. */

static int64_t ceiling_division(int64_t a, int64_t b)
{
    return a >= 0 ? (a + b - 1) / b : -(-a / b);
}

/* Adds weight * x[i * stride + shift] to y[i], for i in [first, last) where that is inside x. */
static void add_shifted(float *y, int64_t first, int64_t last, float weight, const float *x, int64_t extent, int64_t stride, int64_t shift)
{
    int64_t low = ceiling_division(-shift, stride), high = ceiling_division(extent - shift, stride);
    low = low > first ? low : first;
    high = high < last ? high : last;
    if (stride == 1) {
        for (int64_t i = low; i < high; i++)
            y[i] += weight * x[i + shift];
    } else {
        for (int64_t i = low; i < high; i++)
            y[i] += weight * x[i * stride + shift];
    }
}

/* Operands: x (batch, channels, ...), weights, bias or none. integers: groups, then for every dimension in space stride, padding before,
   dilation. */
void convolution(const struct call *call)
{
    const struct array *x = call->operands[0], *w = call->operands[1], *bias = call->count > 2 ? call->operands[2] : NULL;
    const struct array *y = call->result;
    const int64_t groups = call->integers[0], *space = call->integers + 1;
    const int64_t channels = w->shape[1], kernels = w->shape[0] / groups;
    const int64_t last_term = call->last_term < 0 ? channels : call->last_term;
    const int rank = y->rank, inner = rank - 1;
    const int64_t *along = space + 3 * (inner - 2);
    int64_t place[MOST_DIMENSIONS], one[MOST_DIMENSIONS], tap[MOST_DIMENSIONS], zero[MOST_DIMENSIONS] = {0};
    int64_t xs[MOST_DIMENSIONS], ws[MOST_DIMENSIONS], ys[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(w, ws);
    strides_of(y, ys);
    begin(place, call);
    for (int d = 0; d < rank; d++)
        one[d] = d == inner ? call->first[d] + 1 : call->last[d];
    do {
        float *row = (float *)y->data + position(place, ys, inner);
        int64_t m = place[1], from = m / kernels * channels;
        /* The bias comes with the last terms. */
        for (int64_t i = call->first[inner]; i < call->last[inner]; i++)
            row[i] = (call->first_term ? row[i] : 0) + (bias && last_term == channels ? ((const float *)bias->data)[m] : 0);
        for (int64_t c = call->first_term; c < last_term; c++) {
            memset(tap, 0, sizeof tap);
            do {
                int64_t at = place[0] * xs[0] + (from + c) * xs[1];
                int inside = 1;
                for (int d = 2; d < inner; d++) {
                    int64_t p = place[d] * space[3 * (d - 2)] - space[3 * (d - 2) + 1] + tap[d] * space[3 * (d - 2) + 2];
                    inside = inside && p >= 0 && p < x->shape[d];
                    at += p * xs[d];
                }
                if (inside) {
                    float weight = ((const float *)w->data)[m * ws[0] + c * ws[1] + position(tap + 2, ws + 2, rank - 2)];
                    int64_t shift = tap[inner] * along[2] - along[1];
                    add_shifted(row, call->first[inner], call->last[inner], weight, (const float *)x->data + at, x->shape[inner], along[0], shift);
                }
            } while (next(tap + 2, zero, w->shape + 2, rank - 2));
        }
    } while (next(place, call->first, one, rank));
}

/* Operands: a (..., rows, inner), b (..., inner, columns), c that is broadcast to the result, or none. integers: whether a is transposed,
   and b; reals: what the product and c are multiplied by. */
void matrix_product(const struct call *call)
{
    const struct array *a = call->operands[0], *b = call->operands[1], *c = call->count > 2 ? call->operands[2] : NULL, *y = call->result;
    const int turn_a = call->integers[0] != 0, turn_b = call->integers[1] != 0, rank = y->rank, rows = rank - 2, columns = rank - 1;
    const int64_t inner = a->shape[turn_a ? a->rank - 2 : a->rank - 1];
    const int64_t first_term = call->first_term, last_term = call->last_term < 0 ? inner : call->last_term;
    const float scale = (float)call->reals[0], scale_c = (float)call->reals[1];
    int64_t as[MOST_DIMENSIONS], bs[MOST_DIMENSIONS], cs[MOST_DIMENSIONS], ys[MOST_DIMENSIONS];
    int64_t place[MOST_DIMENSIONS], one[MOST_DIMENSIONS];
    broadcast_strides(a, rank, as);
    broadcast_strides(b, rank, bs);
    strides_of(y, ys);
    if (c)
        broadcast_strides(c, rank, cs);
    /* Not broadcast_strides: an extent of one along rows, columns or the sum is no repetition. */
    const int64_t a_row = turn_a ? 1 : a->shape[a->rank - 1], a_inner = turn_a ? a->shape[a->rank - 1] : 1;
    const int64_t b_column = turn_b ? b->shape[b->rank - 1] : 1, b_inner = turn_b ? 1 : b->shape[b->rank - 1];
    begin(place, call);
    for (int d = 0; d < rank; d++)
        one[d] = d == columns ? call->first[d] + 1 : call->last[d];
    do {
        const float *left = (const float *)a->data + position(place, as, rows) + place[rows] * a_row;
        const float *right = (const float *)b->data + position(place, bs, rows);
        float *row = (float *)y->data + position(place, ys, columns);
        const int64_t first = call->first[columns], last = call->last[columns];
        for (int64_t j = first; j < last && !first_term; j++)
            row[j] = 0;
        if (b_column == 1) {
            for (int64_t k = first_term; k < last_term; k++)
                add_shifted(row, first, last, left[k * a_inner], right + k * b_inner, last, 1, 0);
        } else {
            for (int64_t j = first; j < last; j++)
                for (int64_t k = first_term; k < last_term; k++)
                    row[j] += left[k * a_inner] * right[j * b_column + k * b_inner];
        }
        for (int64_t j = first; j < last && last_term == inner; j++) {
            row[j] *= scale;
            if (c)
                row[j] += scale_c * (float)get(c, position(place, cs, columns) + j * cs[columns]);
        }
    } while (next(place, call->first, one, rank));
}

/* Several elements into one. */

/* integers: for every dimension in space extent, stride, padding before, padding behind, dilation. Calls `take` for every element of a
   window, and returns how many places the window has within the padding. */
static int64_t window(const struct call *call, const int64_t *place, void (*take)(double *, double), double *state)
{
    const struct array *x = call->operands[0];
    int64_t xs[MOST_DIMENSIONS], tap[MOST_DIMENSIONS] = {0}, zero[MOST_DIMENSIONS] = {0}, extents[MOST_DIMENSIONS];
    int64_t count = 0;
    const int space = x->rank - 2;
    strides_of(x, xs);
    for (int d = 0; d < space; d++)
        extents[d] = call->integers[5 * d];
    do {
        int64_t at = place[0] * xs[0] + place[1] * xs[1];
        int inside = 1, padded = 1;
        for (int d = 0; d < space; d++) {
            const int64_t *own = call->integers + 5 * d;
            int64_t p = place[d + 2] * own[1] - own[2] + tap[d] * own[4];
            inside = inside && p >= 0 && p < x->shape[d + 2];
            padded = padded && p < x->shape[d + 2] + own[3];
            at += p * xs[d + 2];
        }
        count += padded;
        if (inside)
            take(state, get(x, at));
    } while (next(tap, zero, extents, space));
    return count;
}

static void take_largest(double *state, double x)
{
    state[0] = x > state[0] || isnan(x) ? x : state[0];
}

static void take_sum(double *state, double x)
{
    state[0] += x;
    state[1]++;
}

void maximum_pool(const struct call *call)
{
    int64_t place[MOST_DIMENSIONS], ys[MOST_DIMENSIONS];
    strides_of(call->result, ys);
    begin(place, call);
    do {
        double state[1] = {-INFINITY};
        window(call, place, take_largest, state);
        put(call->result, position(place, ys, call->result->rank), state[0]);
    } while (next(place, call->first, call->last, call->result->rank));
}

/* integers: as for `window`, then whether padding counts */
void average_pool(const struct call *call)
{
    int64_t place[MOST_DIMENSIONS], ys[MOST_DIMENSIONS];
    const int padding_counts = call->integers[5 * (call->result->rank - 2)] != 0;
    strides_of(call->result, ys);
    begin(place, call);
    do {
        double state[2] = {0, 0};
        int64_t places = window(call, place, take_sum, state);
        put(call->result, position(place, ys, call->result->rank), state[0] / (padding_counts ? (double)places : state[1]));
    } while (next(place, call->first, call->last, call->result->rank));
}

/* Which dimensions [from, to) of a result are taken together: the places of one group, and where groups begin. */
struct grouping {
    int64_t first[MOST_DIMENSIONS], last[MOST_DIMENSIONS], each[MOST_DIMENSIONS];
};

static struct grouping grouped(const struct call *call, int64_t from, int64_t to)
{
    struct grouping group;
    for (int d = 0; d < call->result->rank; d++) {
        int inside = d >= from && d < to;
        group.first[d] = inside ? 0 : call->first[d];
        group.last[d] = inside ? call->result->shape[d] : call->last[d];
        group.each[d] = inside ? 1 : call->last[d];
    }
    return group;
}

static void normalise_exponentials(const struct call *call, int logarithmic)
{
    const struct array *x = call->operands[0], *y = call->result;
    const int64_t from = call->integers[0], to = call->integers[1];
    const struct grouping group = grouped(call, from, to);
    int64_t strides[MOST_DIMENSIONS], place[MOST_DIMENSIONS], zero[MOST_DIMENSIONS] = {0}, inner[MOST_DIMENSIONS];
    const int depth = (int)(to - from);
    strides_of(y, strides);
    memcpy(place, group.first, sizeof place);
    do {
        const int64_t base = position(place, strides, y->rank);
        double most = -INFINITY, total = 0;
        memset(inner, 0, sizeof inner);
        do {
            double value = get(x, base + position(inner, strides + from, depth));
            most = value > most || isnan(value) ? value : most;
        } while (next(inner, zero, group.last + from, depth));
        do
            total += exp(get(x, base + position(inner, strides + from, depth)) - most);
        while (next(inner, zero, group.last + from, depth));
        do {
            int64_t at = base + position(inner, strides + from, depth);
            double shifted = get(x, at) - most;
            put(y, at, logarithmic ? shifted - log(total) : exp(shifted) / total);
        } while (next(inner, zero, group.last + from, depth));
    } while (next(place, group.first, group.each, y->rank));
}

/* integers: the first dimension that is taken together, and the one after the last */
void softmax(const struct call *call)
{
    normalise_exponentials(call, 0);
}

void log_softmax(const struct call *call)
{
    normalise_exponentials(call, 1);
}

/* Operands: x, scale, bias or none. integers: the first dimension that is taken together; reals: epsilon */
void layer_normalization(const struct call *call)
{
    const struct array *x = call->operands[0], *scale = call->operands[1], *bias = call->count > 2 ? call->operands[2] : NULL;
    const struct array *y = call->result;
    const int from = (int)call->integers[0], depth = y->rank - from;
    const struct grouping group = grouped(call, from, y->rank);
    int64_t strides[MOST_DIMENSIONS], ss[MOST_DIMENSIONS], bs[MOST_DIMENSIONS], place[MOST_DIMENSIONS], inner[MOST_DIMENSIONS];
    const int64_t zero[MOST_DIMENSIONS] = {0};
    strides_of(y, strides);
    broadcast_strides(scale, y->rank, ss);
    if (bias)
        broadcast_strides(bias, y->rank, bs);
    memcpy(place, group.first, sizeof place);
    do {
        const int64_t base = position(place, strides, y->rank);
        double mean = 0, variance = 0, count = 0;
        memset(inner, 0, sizeof inner);
        do {
            mean += get(x, base + position(inner, strides + from, depth));
            count++;
        } while (next(inner, zero, group.last + from, depth));
        mean /= count;
        do {
            double difference = get(x, base + position(inner, strides + from, depth)) - mean;
            variance += difference * difference / count;
        } while (next(inner, zero, group.last + from, depth));
        do {
            int64_t at = base + position(inner, strides + from, depth);
            double value = (get(x, at) - mean) / sqrt(variance + call->reals[0]);
            value *= get(scale, position(place, ss, from) + position(inner, ss + from, depth));
            put(y, at, bias ? value + get(bias, position(place, bs, from) + position(inner, bs + from, depth)) : value);
        } while (next(inner, zero, group.last + from, depth));
    } while (next(place, group.first, group.each, y->rank));
}

static double plus(double total, double x)
{
    return total + x;
}

static double larger(double most, double x)
{
    return x > most || isnan(x) ? x : most;
}

static double smaller(double least, double x)
{
    return x < least || isnan(x) ? x : least;
}

/* integers: for every dimension of the operand the result's dimension that it is, or -1 if it is reduced */
static void reduce(const struct call *call, double (*combine)(double, double), double start, int mean)
{
    const struct array *x = call->operands[0], *y = call->result;
    int64_t xs[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    int64_t first[MOST_DIMENSIONS], last[MOST_DIMENSIONS], at[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(y, ys);
    begin(place, call);
    do {
        double value = start, count = 0;
        for (int d = 0; d < x->rank; d++) {
            int64_t axis = call->integers[d];
            at[d] = first[d] = axis < 0 ? 0 : place[axis];
            last[d] = axis < 0 ? x->shape[d] : place[axis] + 1;
        }
        do {
            value = combine(value, get(x, position(at, xs, x->rank)));
            count++;
        } while (next(at, first, last, x->rank));
        put(y, position(place, ys, y->rank), mean ? value / count : value);
    } while (next(place, call->first, call->last, y->rank));
}

void reduce_mean(const struct call *call)
{
    reduce(call, plus, 0, 1);
}

void reduce_sum(const struct call *call)
{
    reduce(call, plus, 0, 0);
}

void reduce_maximum(const struct call *call)
{
    reduce(call, larger, -INFINITY, 0);
}

void reduce_minimum(const struct call *call)
{
    reduce(call, smaller, INFINITY, 0);
}

/* Elements to other places. */

/* integers: for every dimension of the result the operand's dimension that it is */
void transpose(const struct call *call)
{
    const struct array *x = call->operands[0], *y = call->result;
    int64_t xs[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], moved[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(y, ys);
    for (int d = 0; d < y->rank; d++)
        moved[d] = xs[call->integers[d]];
    begin(place, call);
    do
        copy_element(y, position(place, ys, y->rank), x, position(place, moved, y->rank));
    while (next(place, call->first, call->last, y->rank));
}

/* integers: the dimension along which the operands follow one another */
void concatenate(const struct call *call)
{
    const struct array *y = call->result;
    const int axis = (int)call->integers[0];
    int64_t xs[MOST_OPERANDS][MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(y, ys);
    for (int i = 0; i < call->count; i++)
        strides_of(call->operands[i], xs[i]);
    begin(place, call);
    do {
        int64_t along = place[axis], index = position(place, ys, y->rank);
        int i = 0;
        while (along >= call->operands[i]->shape[axis])
            along -= call->operands[i++]->shape[axis];
        copy_element(y, index, call->operands[i], position(place, xs[i], y->rank) + (along - place[axis]) * xs[i][axis]);
    } while (next(place, call->first, call->last, y->rank));
}

/* integers: for every dimension where it begins, and its step */
void slice(const struct call *call)
{
    const struct array *x = call->operands[0], *y = call->result;
    int64_t xs[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(y, ys);
    begin(place, call);
    do {
        int64_t from = 0;
        for (int d = 0; d < y->rank; d++)
            from += (call->integers[2 * d] + place[d] * call->integers[2 * d + 1]) * xs[d];
        copy_element(y, position(place, ys, y->rank), x, from);
    } while (next(place, call->first, call->last, y->rank));
}

void tile(const struct call *call)
{
    const struct array *x = call->operands[0], *y = call->result;
    int64_t xs[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(y, ys);
    begin(place, call);
    do {
        int64_t from = 0;
        for (int d = 0; d < y->rank; d++)
            from += place[d] % x->shape[d] * xs[d];
        copy_element(y, position(place, ys, y->rank), x, from);
    } while (next(place, call->first, call->last, y->rank));
}

/* integers: for every dimension how many places lie before the operand; reals: what is there */
void pad(const struct call *call)
{
    const struct array *x = call->operands[0], *y = call->result;
    int64_t xs[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(y, ys);
    begin(place, call);
    do {
        int64_t from = 0;
        int inside = 1;
        for (int d = 0; d < y->rank; d++) {
            int64_t p = place[d] - call->integers[d];
            inside = inside && p >= 0 && p < x->shape[d];
            from += p * xs[d];
        }
        put(y, position(place, ys, y->rank), inside ? get(x, from) : call->reals[0]);
    } while (next(place, call->first, call->last, y->rank));
}

/* An index into `extent` elements, which may count from the end. */
static int64_t chosen(const struct array *indices, int64_t at, int64_t extent)
{
    int64_t index = get_integer(indices, at);
    if (index < -extent || index >= extent)
        fail("an index is out of range", "gather");
    return index < 0 ? index + extent : index;
}

/* Operands: data, indices. integers: the dimension of the data in which indices choose */
void gather(const struct call *call)
{
    const struct array *x = call->operands[0], *indices = call->operands[1], *y = call->result;
    const int axis = (int)call->integers[0], behind = axis + indices->rank;
    int64_t xs[MOST_DIMENSIONS], is[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(indices, is);
    strides_of(y, ys);
    begin(place, call);
    do {
        int64_t index = chosen(indices, position(place + axis, is, indices->rank), x->shape[axis]);
        int64_t from = position(place, xs, axis) + index * xs[axis] + position(place + behind, xs + axis + 1, y->rank - behind);
        copy_element(y, position(place, ys, y->rank), x, from);
    } while (next(place, call->first, call->last, y->rank));
}

/* As `gather`, with an index for every element of the result. */
void gather_elements(const struct call *call)
{
    const struct array *x = call->operands[0], *indices = call->operands[1], *y = call->result;
    const int axis = (int)call->integers[0];
    int64_t xs[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(y, ys);
    begin(place, call);
    do {
        int64_t at = position(place, ys, y->rank), index = chosen(indices, at, x->shape[axis]);
        copy_element(y, at, x, position(place, xs, y->rank) + (index - place[axis]) * xs[axis]);
    } while (next(place, call->first, call->last, y->rank));
}

/* Operands: data, indices whose last dimension says places. integers: how many leading dimensions both have in common */
void gather_nd(const struct call *call)
{
    const struct array *x = call->operands[0], *indices = call->operands[1], *y = call->result;
    const int common = (int)call->integers[0], outer = indices->rank - 1, depth = (int)indices->shape[outer];
    int64_t xs[MOST_DIMENSIONS], is[MOST_DIMENSIONS], ys[MOST_DIMENSIONS], place[MOST_DIMENSIONS];
    strides_of(x, xs);
    strides_of(indices, is);
    strides_of(y, ys);
    begin(place, call);
    do {
        int64_t from = position(place, xs, common) + position(place + outer, xs + common + depth, y->rank - outer);
        for (int d = 0; d < depth; d++)
            from += chosen(indices, position(place, is, outer) + d, x->shape[common + d]) * xs[common + d];
        copy_element(y, position(place, ys, y->rank), x, from);
    } while (next(place, call->first, call->last, y->rank));
}
