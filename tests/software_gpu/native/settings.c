/* Settings: defaults, then the run directory's file `settings`, then environment variables SOFTWARE_GPU_<KEY>. */
#include "device.h"
#include <execinfo.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

EXPORTED struct sg_settings sg_settings;

static int open_log(void) {
    if (!strcmp(sg_settings.log, "stderr"))
        return dup(STDERR_FILENO);
    return open(sg_settings.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

void sg_log_stack(void) {
    void *frames[64];
    int fd = sg_settings.log[0] ? open_log() : -1;
    if (fd < 0)
        return;
    backtrace_symbols_fd(frames, backtrace(frames, 64), fd);
    close(fd);
}

void sg_log(const char *format, ...) {
    if (!sg_settings.log[0])
        return;
    char text[512];
    int length = snprintf(text, sizeof text, "[software GPU, process %d] ", getpid());
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(text + length, sizeof text - length, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof text - 1)
        length = sizeof text - 1;
    text[length++] = '\n';
    int fd = open_log();
    if (fd < 0)
        return;
    if (write(fd, text, length) < 0) { /* there is nobody to tell */
    }
    close(fd);
}

static int64_t parse_bytes(const char *text) {
    char *unit;
    double value = strtod(text, &unit);
    static const char units[] = "KMGT";
    const char *found = *unit ? strcasestr(units, (char[]){*unit, 0}) : NULL;
    for (; found && found >= units; found--)
        value *= 1024;
    return (int64_t)value;
}

static void set_text(char *field, size_t size, const char *value) { snprintf(field, size, "%s", value); }

static const char *const keys[] = {"DEVICES",    "CAPACITY", "CONTEXT",   "KERNEL_US",  "SERIAL",
                                   "FAULT",      "LOG",      "OPERATIONS", "NAME",      "FAIL_RATE",
                                   "FAIL_SEED",  "FAIL_CALLS", "DELAY_US", "DELAY_CALLS", "MIG"};

static void set(const char *key, const char *value) {
    struct sg_settings *s = &sg_settings;
    if (!strcmp(key, "DEVICES"))
        s->devices = atoi(value);
    else if (!strcmp(key, "CAPACITY"))
        s->capacity = parse_bytes(value) / SG_UNIT * SG_UNIT;
    else if (!strcmp(key, "CONTEXT"))
        s->context = parse_bytes(value) / SG_UNIT * SG_UNIT;
    else if (!strcmp(key, "KERNEL_US"))
        s->kernel_ns = (int64_t)(strtod(value, NULL) * 1000);
    else if (!strcmp(key, "SERIAL"))
        s->serial = atoi(value);
    else if (!strcmp(key, "MIG"))
        s->mig = atoi(value);
    else if (!strcmp(key, "FAULT"))
        set_text(s->fault, sizeof s->fault, value);
    else if (!strcmp(key, "LOG"))
        set_text(s->log, sizeof s->log, value);
    else if (!strcmp(key, "OPERATIONS"))
        set_text(s->operations, sizeof s->operations, value);
    else if (!strcmp(key, "NAME"))
        set_text(s->name, sizeof s->name, value);
    else if (!strcmp(key, "FAIL_RATE"))
        s->fail_rate = strtod(value, NULL);
    else if (!strcmp(key, "FAIL_SEED"))
        s->fail_seed = strtoull(value, NULL, 10);
    else if (!strcmp(key, "FAIL_CALLS"))
        set_text(s->fail_calls, sizeof s->fail_calls, value);
    else if (!strcmp(key, "DELAY_US"))
        s->delay_ns = (int64_t)(strtod(value, NULL) * 1000);
    else if (!strcmp(key, "DELAY_CALLS"))
        set_text(s->delay_calls, sizeof s->delay_calls, value);
}

static void read_file(void) {
    char path[300], line[700];
    snprintf(path, sizeof path, "%s/settings", sg_settings.directory);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        char *equals = strchr(line, '=');
        if (equals && line[0] != '#') {
            *equals = 0;
            set(line, equals + 1);
        }
    }
    if (file)
        fclose(file);
}

void sg_load_settings(void) {
    struct sg_settings *s = &sg_settings;
    s->devices = 1;
    s->capacity = 1ll << 30;
    s->context = 128ll << 20;
    s->kernel_ns = 20000;
    s->serial = true;
    set_text(s->name, sizeof s->name, "Software GPU");
    set_text(s->fault, sizeof s->fault, "wild");
    set_text(s->fail_calls, sizeof s->fail_calls,
             "cuMemCreate,cuMemAddressReserve,cuMemMap,cuMemSetAccess,cuMemExportToShareableHandle,"
             "cuMemImportFromShareableHandle,cuMemAlloc,cuMemHostAlloc");
    const char *directory = getenv("SOFTWARE_GPU_DIRECTORY");
    if (!directory || !directory[0])
        return;
    set_text(s->directory, sizeof s->directory, directory);
    read_file();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[64];
        snprintf(name, sizeof name, "SOFTWARE_GPU_%s", keys[i]);
        const char *value = getenv(name);
        if (value)
            set(keys[i], value);
    }
    if (s->devices < 0 || s->devices > SG_MAX_DEVICES)
        s->devices = SG_MAX_DEVICES;
}
