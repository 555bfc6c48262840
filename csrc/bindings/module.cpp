// The extension module, with one bind call per area.
#include <nanobind/nanobind.h>

#include "bindings/bind.h"
#include "hostfunc/gil.h"

NB_MODULE(_core, m) {
  m.doc() = "weft's native code: drivers, host tasks, the mask kernel, sampling, attention, guided state.";
  weft::outlive_finalisation();
  // An engine in a global variable lives until the process ends, which nanobind would report as a leak.
  nanobind::set_leak_warnings(false);
  weft::bind_driver(m);
  weft::bind_hostfunc(m);
  weft::bind_kernels(m);
  weft::bind_token_mask(m);
  weft::bind_slots(m);
  weft::bind_torch(m);
  weft::bind_matcher(m);
  weft::bind_guided(m);
  weft::bind_proposals(m);
  weft::bind_after(m);
  weft::bind_plugin(m);
  weft::bind_aici(m);
  weft::bind_llguidance(m);
  weft::bind_recording(m);
  weft::bind_closing(m);
  weft::bind_words(m);
  weft::bind_answers(m);  // after the classes of its arguments
}
