/* Runs the plan on inputs from files. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

static void list(const char *what, const struct port *ports, int count)
{
    static const char *const types[] = {"float32", "int64", "int32", "uint8", "bool"};
    for (int i = 0; i < count; i++) {
        fprintf(stderr, "  %s %s: %s [", what, ports[i].name, types[ports[i].array.type]);
        for (int d = 0; d < ports[i].array.rank; d++)
            fprintf(stderr, d ? ", %lld" : "%lld", (long long)ports[i].array.shape[d]);
        fprintf(stderr, "]\n");
    }
}

static int usage(const char *program)
{
    fprintf(stderr, "usage: %s [--jitter SEED] [--engines N] WEIGHTS INPUT... OUTPUT...\nFiles hold elements, the last dimension fastest:\n", program);
    list("input", plan.input, plan.inputs);
    list("output", plan.output, plan.outputs);
    return 2;
}

static FILE *opened(const char *name, const char *mode)
{
    FILE *file = fopen(name, mode);
    if (!file)
        fail("cannot be opened", name);
    return file;
}

int main(int count, char **words)
{
    struct options options = {0, 2};
    int at = 1;
    for (; at + 1 < count && !strncmp(words[at], "--", 2); at += 2) {
        char *end;
        unsigned long value = strtoul(words[at + 1], &end, 10);
        if (*end || !value)
            return usage(words[0]);
        if (!strcmp(words[at], "--jitter"))
            options.seed = value;
        else if (!strcmp(words[at], "--engines") && value < 100000)
            options.engines = (int)value;
        else
            return usage(words[0]);
    }
    if (count - at != 1 + plan.inputs + plan.outputs)
        return usage(words[0]);
    struct machine *machine = new_machine();
    FILE *file = opened(words[at], "rb");
    read_weights(machine, file, words[at++]);
    fclose(file);
    for (int i = 0; i < plan.inputs; i++, at++) {
        file = opened(words[at], "rb");
        read_input(machine, &plan.input[i], file, words[at]);
        fclose(file);
    }
    run(machine, &options);
    for (int i = 0; i < plan.outputs; i++, at++) {
        file = opened(words[at], "wb");
        write_output(machine, &plan.output[i], file, words[at]);
        if (fclose(file))
            fail("cannot be written", words[at]);
    }
    free_machine(machine);
    return 0;
}
