#define _POSIX_C_SOURCE 200809L

#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Told once, when a job or a copy has ended. Each has a lock of its own, so that a sanitizer sees no order but that of the plan. */
struct event {
    pthread_mutex_t lock;
    pthread_cond_t told;
    int happened;
};

struct machine {
    unsigned char **memory;
    struct event *events;
    const struct options *options;
};

/* A core or a copy engine, and the thread that it is. */
struct worker {
    struct machine *machine;
    int number;
    pthread_t thread;
};

void fail(const char *what, const char *name)
{
    fprintf(stderr, "%s: %s\n", name, what);
    exit(1);
}

static void *take(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        fail("there is no memory left", "plan");
    /* Bytes that nobody has written are no numbers. */
    memset(memory, 0xff, bytes);
    return memory;
}

struct machine *new_machine(void)
{
    struct machine *machine = take(sizeof *machine);
    machine->memory = take(sizeof *machine->memory * (size_t)plan.memories);
    for (int i = 0; i < plan.memories; i++)
        machine->memory[i] = take(plan.memory[i].bytes);
    machine->events = take(sizeof *machine->events * (size_t)(plan.jobs + plan.copies));
    for (int i = 0; i < plan.jobs + plan.copies; i++) {
        pthread_mutex_init(&machine->events[i].lock, NULL);
        pthread_cond_init(&machine->events[i].told, NULL);
        machine->events[i].happened = 0;
    }
    return machine;
}

void free_machine(struct machine *machine)
{
    for (int i = 0; i < plan.memories; i++)
        free(machine->memory[i]);
    for (int i = 0; i < plan.jobs + plan.copies; i++) {
        pthread_mutex_destroy(&machine->events[i].lock);
        pthread_cond_destroy(&machine->events[i].told);
    }
    free(machine->memory);
    free(machine->events);
    free(machine);
}

/* Events. */

#if defined(__SANITIZE_THREAD__)

/* A lock orders those who take it, also where the plan does not: then the sanitizer would miss that a wait is missing. */
static void wait_for(struct machine *machine, const struct waits *after)
{
    const struct timespec moment = {0, 20000};
    for (int i = 0; i < after->count; i++)
        while (!__atomic_load_n(&machine->events[after->events[i]].happened, __ATOMIC_ACQUIRE))
            nanosleep(&moment, NULL);
}

static void tell(struct machine *machine, int number)
{
    __atomic_store_n(&machine->events[number].happened, 1, __ATOMIC_RELEASE);
}

#else

static void wait_for(struct machine *machine, const struct waits *after)
{
    for (int i = 0; i < after->count; i++) {
        struct event *event = &machine->events[after->events[i]];
        pthread_mutex_lock(&event->lock);
        while (!event->happened)
            pthread_cond_wait(&event->told, &event->lock);
        pthread_mutex_unlock(&event->lock);
    }
}

static void tell(struct machine *machine, int number)
{
    struct event *event = &machine->events[number];
    pthread_mutex_lock(&event->lock);
    event->happened = 1;
    pthread_cond_broadcast(&event->told);
    pthread_mutex_unlock(&event->lock);
}

#endif

/* A delay that the seed, the event and the moment decide: often none, sometimes up to 0.2 ms, seldom up to 3 ms. */
static void dawdle(const struct machine *machine, int event, unsigned moment)
{
    if (!machine->options->seed)
        return;
    uint64_t x = machine->options->seed * 0x9e3779b97f4a7c15u + (uint64_t)event * 4 + moment;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    long most = x % 16 == 0 ? 3000000 : x % 16 < 6 ? 200000 : 0;
    if (most) {
        struct timespec delay = {0, (long)(x >> 8) % most};
        nanosleep(&delay, NULL);
    }
}

/* Between memories and arrays. */

/* Copies a part of an array from or to the bytes of a tensor, which holds nothing but the part. */
static void copy_part(unsigned char *tensor, unsigned char *array, size_t bytes, const struct part *part, int to_tensor)
{
    int64_t place[MOST_DIMENSIONS], one[MOST_DIMENSIONS];
    const int inner = part->rank - 1;
    const size_t run = (size_t)(part->last[inner] - part->first[inner]) * bytes;
    for (int d = 0; d < part->rank; d++) {
        place[d] = part->first[d];
        one[d] = d == inner ? part->first[d] + 1 : part->last[d];
    }
    do {
        int64_t index = 0;
        for (int d = 0; d < part->rank; d++)
            index = index * part->shape[d] + place[d];
        if (to_tensor)
            memcpy(tensor, array + (size_t)index * bytes, run);
        else
            memcpy(array + (size_t)index * bytes, tensor, run);
        tensor += run;
    } while (next(place, part->first, one, part->rank));
}

static void load(struct machine *machine, const struct place *place, const struct array *array)
{
    unsigned char *tensor = machine->memory[place->memory] + place->address;
    size_t bytes = type_bytes(array->type);
    if (place->part.rank)
        copy_part(tensor, array->data, bytes, &place->part, 0);
    else
        memcpy(array->data, tensor, (size_t)elements(array) * bytes);
}

static void store(struct machine *machine, const struct place *place, const struct array *array)
{
    unsigned char *tensor = machine->memory[place->memory] + place->address;
    size_t bytes = type_bytes(array->type);
    if (place->part.rank)
        copy_part(tensor, array->data, bytes, &place->part, 1);
    else
        memcpy(tensor, array->data, (size_t)elements(array) * bytes);
}

/* Jobs. */

static void run_step(const struct step *step, const struct job *job, const struct array *arrays)
{
    const struct array *operands[MOST_OPERANDS];
    const int64_t zero[MOST_DIMENSIONS] = {0};
    for (int i = 0; i < step->count; i++)
        operands[i] = step->operands[i] < 0 ? NULL : &arrays[step->operands[i]];
    const struct array *result = &arrays[step->result];
    const int divided = step->divided && job->part.rank;
    const int sums = step == &job->operators->step[job->operators->main];
    const struct call call = {step->count, operands, result, divided ? job->part.first : zero, divided ? job->part.last : result->shape,
                              sums ? job->terms.first : 0, sums ? job->terms.last : -1, step->integers, step->reals};
    step->run(&call);
}

/* Runs a job in a core's workspace: its operands come from where the plan says they are, its results go where they shall be. */
static void run_job(struct machine *machine, const struct job *job, unsigned char *workspace, struct array *arrays)
{
    const struct operators *own = job->operators;
    memset(workspace, 0xff, own->workspace);
    for (int i = 0; i < own->arrays; i++) {
        arrays[i] = own->array[i];
        arrays[i].data = workspace + own->address[i];
    }
    for (int i = 0; i < own->constants; i++)
        memcpy(arrays[own->constant[i].array].data, own->constant[i].data,
               (size_t)elements(&arrays[own->constant[i].array]) * type_bytes(arrays[own->constant[i].array].type));
    for (int i = 0; i < job->reads; i++)
        load(machine, &job->read[i], &arrays[job->read[i].array]);
    for (int i = 0; i < (job->terms.leaves ? own->main + 1 : own->steps); i++)
        run_step(&own->step[i], job, arrays);
    for (int i = 0; i < job->writes; i++)
        store(machine, &job->write[i], &arrays[job->write[i].array]);
}

/* Workers. */

static void *run_core(void *argument)
{
    const struct worker *worker = argument;
    const struct core *core = &plan.core[worker->number];
    size_t bytes = 0, arrays = 0;
    for (int i = 0; i < core->jobs; i++) {
        const struct operators *operators = plan.job[core->job[i]].operators;
        bytes = operators->workspace > bytes ? operators->workspace : bytes;
        arrays = (size_t)operators->arrays > arrays ? (size_t)operators->arrays : arrays;
    }
    unsigned char *workspace = take(bytes);
    struct array *array = take(arrays * sizeof *array);
    for (int i = 0; i < core->jobs; i++) {
        const int number = core->job[i];
        wait_for(worker->machine, &plan.job[number].after);
        dawdle(worker->machine, number, 0);
        run_job(worker->machine, &plan.job[number], workspace, array);
        dawdle(worker->machine, number, 1);
        tell(worker->machine, number);
    }
    free(array);
    free(workspace);
    return NULL;
}

/* Engine e of n makes copies e, e + n, e + 2n, ... one after the other. */
static void *run_engine(void *argument)
{
    const struct worker *worker = argument;
    struct machine *machine = worker->machine;
    for (int i = worker->number; i < plan.copies; i += machine->options->engines) {
        const struct copy *copy = &plan.copy[i];
        wait_for(machine, &copy->after);
        dawdle(machine, plan.jobs + i, 0);
        memcpy(machine->memory[copy->to] + copy->destination, machine->memory[copy->from] + copy->source, copy->bytes);
        dawdle(machine, plan.jobs + i, 1);
        tell(machine, plan.jobs + i);
    }
    return NULL;
}

void run(struct machine *machine, const struct options *options)
{
    const int count = plan.cores + options->engines;
    struct worker *workers = take((size_t)count * sizeof *workers);
    machine->options = options;
    for (int i = 0; i < count; i++) {
        workers[i].machine = machine;
        workers[i].number = i < plan.cores ? i : i - plan.cores;
        if (pthread_create(&workers[i].thread, NULL, i < plan.cores ? run_core : run_engine, &workers[i]))
            fail("no thread can be started", "plan");
    }
    for (int i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    free(workers);
}

/* Files. */

void read_weights(struct machine *machine, FILE *file, const char *name)
{
    for (int i = 0; i < plan.weights; i++) {
        const struct weight *weight = &plan.weight[i];
        if (fread(machine->memory[weight->memory] + weight->address, 1, weight->bytes, file) != weight->bytes)
            fail("is too short for the weights of the plan", name);
    }
}

void read_input(struct machine *machine, const struct port *port, FILE *file, const char *name)
{
    struct array array = port->array;
    size_t bytes = (size_t)elements(&array) * type_bytes(array.type);
    array.data = take(bytes);
    if (fread(array.data, 1, bytes, file) != bytes || fgetc(file) != EOF)
        fail("does not have as many bytes as the input", name);
    for (int i = 0; i < port->places; i++)
        store(machine, &port->place[i], &array);
    free(array.data);
}

void write_output(struct machine *machine, const struct port *port, FILE *file, const char *name)
{
    struct array array = port->array;
    size_t bytes = (size_t)elements(&array) * type_bytes(array.type);
    array.data = take(bytes);
    for (int i = 0; i < port->places; i++)
        load(machine, &port->place[i], &array);
    if (fwrite(array.data, 1, bytes, file) != bytes)
        fail("cannot be written", name);
    free(array.data);
}
