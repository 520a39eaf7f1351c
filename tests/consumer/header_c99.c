/* The header alone, as strict C99. Compiling it is the test. */
#include <normquant/normquant.h>

int header_c99(void);
int header_c99(void) {
    nq_problem problem = NQ_PROBLEM_INIT;
    nq_tensors tensors = NQ_TENSORS_INIT;
    nq_context_options context = NQ_CONTEXT_OPTIONS_INIT;
    nq_prepare_options prepare = NQ_PREPARE_OPTIONS_INIT;
    nq_plan plan = NQ_PLAN_INIT;
    nq_counters counters = NQ_COUNTERS_INIT;
    return problem.struct_size && tensors.struct_size && context.struct_size && prepare.struct_size && plan.struct_size &&
           counters.struct_size;
}
