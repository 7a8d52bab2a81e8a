/* The plan as tables, which plan.c holds. */
#ifndef PLAN_H
#define PLAN_H

#include "arrays.h"

/* A memory of the machine: one array of bytes. */
struct memory {
    const char *name;
    size_t bytes;
};

/* A part of an array of a shape, in every dimension [first, last); of rank 0: the array as it is. */
struct part {
    int rank;
    const int64_t *shape, *first, *last;
};

/* A tensor of the plan at its address, which holds a part of an array. */
struct place {
    int memory;
    size_t address;
    int array;
    struct part part;
};

/* A run of a kernel on arrays of a job's workspace. A divided one makes the part of its result that the job is for. */
struct step {
    kernel *run;
    int count;
    const int *operands; /* -1: absent */
    int result;
    int divided;
    const int64_t *integers;
    const double *reals;
};

/* A known value of an operand. */
struct constant {
    int array;
    const void *data;
};

/* What the operators of a job do. Arrays have addresses in the core's workspace; the address of a constant is not used. The step `main` is
   that of the first operator, whose sum may be in parts: pieces that leave sums to others run no step behind it. */
struct operators {
    size_t workspace;
    int arrays;
    const struct array *array;
    const size_t *address;
    int constants;
    const struct constant *constant;
    int steps;
    const struct step *step;
    int main;
};

/* Numbers of events: those of jobs, then those of copies. */
struct waits {
    int count;
    const int *events;
};

/* The terms of its sum that a job adds: [first, last), or all if last is below 0. It may leave the sum to another job. */
struct terms {
    int64_t first, last;
    int leaves;
};

struct job {
    const char *name;
    const struct operators *operators;
    struct part part;
    struct terms terms;
    int reads;
    const struct place *read;
    int writes;
    const struct place *write;
    struct waits after;
};

struct copy {
    const char *name;
    int from;
    size_t source;
    int to;
    size_t destination;
    size_t bytes;
    struct waits after;
};

/* A core runs its jobs in this order. */
struct core {
    const char *name;
    int jobs;
    const int *job;
};

/* An input or output of the networks, of which parts lie at some places in main memory. */
struct port {
    const char *name;
    struct array array;
    int places;
    const struct place *place;
};

/* Bytes of weights.bin, one after the other, and where they lie. */
struct weight {
    int memory;
    size_t address;
    size_t bytes;
};

struct plan {
    int memories;
    const struct memory *memory;
    int cores;
    const struct core *core;
    int jobs;
    const struct job *job;
    int copies; /* in the order of their estimated starts */
    const struct copy *copy;
    int weights;
    const struct weight *weight;
    int inputs;
    const struct port *input;
    int outputs;
    const struct port *output;
};

extern const struct plan plan;

#endif
