// Host functions for Python: launches, handles, failures, the watchdog, the awake clock, and the end of the
// interpreter.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <csignal>
#include <optional>

#include "bindings/bind.h"
#include "driver/error.h"
#include "hostfunc/gil.h"
#include "hostfunc/host_task.h"
#include "hostfunc/watchdog.h"
#include "support/awake.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

// At exit, the interpreter waits this long for running callbacks.
constexpr double kExitSeconds = 2.0;

// faulthandler prints every Python stack on this signal. It is a real-time signal, because nothing uses these by
// default.
const int kWatchdogSignal = SIGRTMIN + 7;
constexpr double kWatchdogSeconds = 10.0;
int watchdog_signal = 0;  // the signal for which faulthandler is registered; guarded by the GIL
bool watchdog_is_set = false;

cu::CUstream stream_of(std::uintptr_t handle) { return reinterpret_cast<cu::CUstream>(handle); }

// "module.qualname" of a callable, or of its type if it has no name.
std::string name_of(nb::handle fn) {
  nb::handle named = nb::hasattr(fn, "__qualname__") ? fn : nb::handle(fn.type());
  nb::object module = nb::getattr(named, "__module__", nb::none());
  std::string name = nb::str(nb::getattr(named, "__qualname__", nb::str("?"))).c_str();
  return module.is_none() ? name : std::string(nb::str(module).c_str()) + "." + name;
}

// Sets the watchdog's limit in seconds (0: none), and the signal that prints every Python stack.
void watch_gil(double seconds, int signal) {
  nb::module_ faulthandler = nb::module_::import_("faulthandler");
  if (watchdog_signal && watchdog_signal != signal) faulthandler.attr("unregister")(watchdog_signal);
  if (watchdog_signal != signal)
    faulthandler.attr("register")(signal, nb::arg("file") = 2, nb::arg("all_threads") = true, nb::arg("chain") = false);
  watchdog_signal = signal;
  watchdog_is_set = true;
  set_watchdog(seconds, signal);
}

void watch_gil_once() {
  if (!watchdog_is_set) watch_gil(kWatchdogSeconds, kWatchdogSignal);
}

void require_callable(nb::handle fn) {
  if (!PyCallable_Check(fn.ptr()))
    throw nb::type_error(("a host function is a callable, not " + std::string(Py_TYPE(fn.ptr())->tp_name)).c_str());
}

std::optional<std::uint64_t> launch_hostfunc(int driver, std::uintptr_t stream, bool free_after_run, nb::handle fn,
                                             nb::tuple args, nb::dict kwargs) {
  const cu::Driver &table = driver_by_index(driver);
  require_callable(fn);
  raise_failures(&table);
  watch_gil_once();
  const std::uint64_t handle =
      launch_python(table, stream_of(stream), name_of(fn), fn.ptr(), args.ptr(), kwargs.ptr(), free_after_run);
  if (!handle) return std::nullopt;
  return handle;
}

void launch_device_function(std::uintptr_t stream, nb::handle fn, nb::tuple args, nb::dict kwargs,
                            const std::string &name) {
  require_callable(fn);
  raise_failures(&cpu_driver());
  watch_gil_once();
  launch_device(stream_of(stream), name, fn.ptr(), args.ptr(), kwargs.ptr());
}

void launch_native_function(int driver, std::uintptr_t stream, std::uintptr_t function, std::uintptr_t data,
                            nb::handle owner, const std::string &name, bool skippable, bool polled) {
  const cu::Driver &table = driver_by_index(driver);
  raise_failures(&table);
  if (!function) throw nb::value_error("a native task needs the address of a function, got 0");
  NativeTask task;
  task.run = reinterpret_cast<void (*)(void *)>(function);
  task.data = reinterpret_cast<void *>(data);
  task.owner = owner.inc_ref().ptr();
  task.release = [](void *object) { Py_DECREF(static_cast<PyObject *>(object)); };
  task.name = name.c_str();
  task.skippable = skippable;
  task.polled = polled;
  launch_native(table, stream_of(stream), task);
}

void check_failures(std::optional<int> driver) { raise_failures(driver ? &driver_by_index(*driver) : nullptr); }

void free_user_data(std::uint64_t handle) {
  if (!free_handle(handle))
    throw nb::value_error(
        ("host function handle " + std::to_string(handle) + " is unknown: it was freed, or its graph is gone").c_str());
}

nb::dict stats() {
  const HostStats now = host_stats();
  nb::dict out;
  out["launched"] = now.launched;
  out["run"] = now.run;
  out["freed"] = now.freed;
  out["live"] = now.live;
  return out;
}

// Makes the driver ready for polled tasks. Returns None, or the reason why it can't poll.
std::optional<std::string> prepare_polling_of(int driver) {
  GilRelease release;
  const cu::Driver &table = driver_by_index(driver);
  const char *why = nullptr;
  if (!can_poll(table, &why)) return why;
  const cu::CUresult made = prepare_polling(table);
  if (made == cu::CUDA_SUCCESS) return std::nullopt;
  const ErrorText *known = error_text(made);
  return "no room for their words could be made: " + std::string(known ? known->name : "CUDA_ERROR_UNKNOWN");
}

// The number of polled tasks of the capture with this id, while it or a graph made from it lives.
std::int64_t polled_tasks(int driver, std::uint64_t capture) {
  return capture_domain(driver_by_index(driver), capture)->polled.load();
}

void expect_polled_runs(int driver, std::int64_t runs) { expect_polled(driver_by_index(driver), runs); }

// Registered with atexit. Stops callbacks from starting, and prints every failure that was not raised.
void at_exit() {
  bool all_done = leave_interpreter(kExitSeconds);
  {
    GilRelease release;
    all_done &= drain_polled(kExitSeconds);
  }
  drain();
  print_failures();
  // Tasks of live graphs are leaked on purpose, because their Python objects can no longer be released. So do not warn
  // about leaks.
  if (!all_done || host_stats().live != 0) nb::set_leak_warnings(false);
}

}  // namespace

void bind_hostfunc(nb::module_ &m) {
  m.def("launch_hostfunc", &launch_hostfunc, nb::arg("driver"), nb::arg("stream"), nb::arg("free_after_run"),
        nb::arg("fn"), nb::arg("args"), nb::arg("kwargs"));
  m.def("launch_device", &launch_device_function, nb::arg("stream"), nb::arg("fn"), nb::arg("args"), nb::arg("kwargs"),
        nb::arg("name"));
  m.def("launch_native", &launch_native_function, nb::arg("driver"), nb::arg("stream"), nb::arg("function"),
        nb::arg("data"), nb::arg("owner").none(), nb::arg("name"), nb::arg("skippable") = false,
        nb::arg("polled") = false);
  m.def("prepare_polling", &prepare_polling_of, nb::arg("driver"));
  m.def("polled_tasks", &polled_tasks, nb::arg("driver"), nb::arg("capture"));
  m.def("expect_polled", &expect_polled_runs, nb::arg("driver"), nb::arg("runs"));
  m.def("check", &check_failures, nb::arg("driver") = nb::none());
  m.def("exchange_failure_scope", &exchange_scope, nb::arg("scope"));
  m.def("drain", &drain);
  m.def("hostfunc_handles", &handles);
  m.def("free_hostfunc_user_data", &free_user_data, nb::arg("handle"));
  m.def("hostfunc_stats", &stats);
  m.def("in_task", &in_task);
  m.def("set_watchdog", &watch_gil, nb::arg("seconds"), nb::arg("signal"));
  m.attr("WATCHDOG_SIGNAL") = kWatchdogSignal;
  nb::class_<AwakeWatch>(m, "AwakeWatch", "A stopwatch that runs from here on, while this process does.")
      .def(nb::init<>())
      .def_prop_ro(
          "seconds", [](const AwakeWatch &self) { return static_cast<double>(self.passed_ns()) * 1e-9; },
          "The time that passed, without pauses of the process.");
  m.def(
      "end_process_after", [](double seconds) { end_process_after(static_cast<std::int64_t>(seconds * 1e9)); },
      "seconds"_a, "End this process by SIGALRM where it has run for so long; 0: never mind.");
  m.def("_at_exit", &at_exit);
  nb::module_::import_("atexit").attr("register")(m.attr("_at_exit"));
}

}  // namespace weft
