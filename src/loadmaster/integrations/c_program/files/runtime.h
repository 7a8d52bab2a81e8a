/* Runs a plan: memories, cores and copy engines. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include <stdio.h>

#include "plan.h"

/* How a plan is run. Without a seed nothing is delayed. */
struct options {
    unsigned long seed;
    int engines;
};

struct machine;

struct machine *new_machine(void);
void free_machine(struct machine *machine);

void read_weights(struct machine *machine, FILE *file, const char *name);
void read_input(struct machine *machine, const struct port *port, FILE *file, const char *name);
void write_output(struct machine *machine, const struct port *port, FILE *file, const char *name);

void run(struct machine *machine, const struct options *options);

#endif
