#pragma once

#include <nanobind/nanobind.h>

namespace weft {

void bind_driver(nanobind::module_ &m);
void bind_hostfunc(nanobind::module_ &m);
void bind_kernels(nanobind::module_ &m);
void bind_token_mask(nanobind::module_ &m);
void bind_slots(nanobind::module_ &m);
void bind_torch(nanobind::module_ &m);
void bind_matcher(nanobind::module_ &m);
void bind_guided(nanobind::module_ &m);
void bind_proposals(nanobind::module_ &m);
void bind_after(nanobind::module_ &m);
void bind_plugin(nanobind::module_ &m);
void bind_aici(nanobind::module_ &m);
void bind_llguidance(nanobind::module_ &m);
void bind_recording(nanobind::module_ &m);
void bind_closing(nanobind::module_ &m);
void bind_words(nanobind::module_ &m);
void bind_answers(nanobind::module_ &m);

}  // namespace weft
