#include "verify/torch/state.h"

#include "base/pool.h"

int module_cpus(const struct module_judge *j) {
    return j->place.cpu >= 0 ? CPU_COUNT(&j->place.all) : pool_cpu_count();
}

void module_keep_clear(struct module_judge *j) {
    place_beside(&j->place, 0);
    place_beside(&j->place, j->zygote.worker.process.pid);
    place_beside(&j->place, j->referee.process.pid);
}

struct modrun_options module_process_options(const struct module_judge *j, const struct modcase *c) {
    const struct verify_options *o = j->o;
    return (struct modrun_options){
        .device = o->device,
        .threads = o->threads,
        .memory_bytes = on_gpu(j) ? 0 : o->memory_bytes + c->lane_bytes,
        .cpu_s = (uint64_t)((o->run_timeout_s + o->timing_budget_s + o->compile_timeout_s + 10) * o->threads),
        .compilers = o->trusted_compilers,
    };
}
