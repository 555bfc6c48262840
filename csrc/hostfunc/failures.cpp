#include "hostfunc/failures.h"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace weft {
namespace {

struct Failure {
  std::shared_ptr<Domain> domain;
  std::uint64_t ordinal;
  std::string task;
  PyObject *exception;  // owned; null for a C++ exception, which has its text
  std::string text;
};

// The mutex is never held while a thread waits for the GIL, so it may be locked with and without the GIL.
struct Failures {
  std::mutex mutex;
  std::vector<Failure> unraised;
  std::atomic<int> count{0};
  std::map<std::pair<const void *, std::uint64_t>, std::weak_ptr<Domain>> domains[2];
};

Failures &failures() {
  static Failures &it = *new Failures;  // never destroyed: driver threads may outlive statics
  return it;
}

thread_local std::uint64_t current_scope = 0;

std::shared_ptr<Domain> find_domain(const cu::Driver &driver, std::uint64_t key, bool captured) {
  Failures &all = failures();
  std::lock_guard lock(all.mutex);
  auto &domains = all.domains[captured];
  const auto id = std::make_pair(static_cast<const void *>(&driver), key);
  const auto known = domains.find(id);
  if (known != domains.end())
    if (auto domain = known->second.lock()) return domain;
  for (auto it = domains.begin(); it != domains.end();) it = it->second.expired() ? domains.erase(it) : std::next(it);
  auto domain = std::make_shared<Domain>(&driver, captured, current_scope);
  domains[id] = domain;
  return domain;
}

void add(Failure failure) {
  Failures &all = failures();
  std::lock_guard lock(all.mutex);
  failure.domain->skip_below.store(UINT64_MAX, std::memory_order_release);
  all.unraised.push_back(std::move(failure));
  all.count.fetch_add(1);
}

template <class Wanted>
std::vector<Failure> take(Wanted wanted) {
  Failures &all = failures();
  std::lock_guard lock(all.mutex);
  const auto first = std::stable_partition(all.unraised.begin(), all.unraised.end(), std::not_fn(wanted));
  std::vector<Failure> taken(std::make_move_iterator(first), std::make_move_iterator(all.unraised.end()));
  all.unraised.erase(first, all.unraised.end());
  all.count.store(static_cast<int>(all.unraised.size()));
  for (const Failure &f : taken) {
    // The failure is about to be raised, so let the domain run again: a capture from the next execution, a stream from
    // the next launch. With several failures in a domain, the highest ordinal decides.
    const std::uint64_t resume = f.domain->captured ? f.ordinal + 1 : f.domain->next.load();
    const std::uint64_t now = f.domain->skip_below.load(std::memory_order_relaxed);
    if (now == UINT64_MAX || now < resume) f.domain->skip_below.store(resume, std::memory_order_release);
  }
  return taken;
}

nb::object exception_of(Failure &failure) {
  if (failure.exception) return nb::steal(std::exchange(failure.exception, nullptr));
  return nb::module_::import_("weft.errors").attr("HostFuncError")(failure.text.c_str());
}

// Adds a note to an exception, if the exception supports notes.
void add_note(nb::handle exception, nb::handle text) {
  PyObject *result = PyObject_CallMethod(exception.ptr(), "add_note", "O", text.ptr());
  if (!result) PyErr_Clear();
  Py_XDECREF(result);
}

nb::object traceback_of(nb::handle exception) {
  return nb::str("").attr("join")(nb::module_::import_("traceback").attr("format_exception")(exception));
}

std::string where(const Failure &failure) {
  return "in host function " + failure.task + (failure.domain->captured ? ", captured" : ", launched") + " on the " +
         failure.domain->driver->name + " driver";
}

}  // namespace

std::uint64_t exchange_scope(std::uint64_t scope) { return std::exchange(current_scope, scope); }

std::shared_ptr<Domain> stream_domain(const cu::Driver &driver, cu::CUstream stream) {
  return find_domain(driver, reinterpret_cast<std::uintptr_t>(stream), false);
}

std::shared_ptr<Domain> capture_domain(const cu::Driver &driver, std::uint64_t id) {
  return find_domain(driver, id, true);
}

void fail_with_current_exception(const std::shared_ptr<Domain> &domain, std::uint64_t ordinal,
                                 const std::string &task) {
#if PY_VERSION_HEX >= 0x030C0000
  PyObject *value = PyErr_GetRaisedException();
#else
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
#endif
  add({domain, ordinal, task, value, {}});
}

void fail_with_text(const std::shared_ptr<Domain> &domain, std::uint64_t ordinal, const std::string &task,
                    const std::string &text) {
  add({domain, ordinal, task, nullptr, "host function " + task + ": " + text});
}

void raise_failures(const cu::Driver *driver) {
  if (failures().count.load(std::memory_order_acquire) == 0) return;
  std::vector<Failure> taken = take([&](const Failure &failure) {
    return failure.domain->scope == current_scope && (!driver || failure.domain->driver == driver);
  });
  if (taken.empty()) return;
  nb::object first = exception_of(taken.front());
  add_note(first, nb::str(where(taken.front()).c_str()));
  for (std::size_t i = 1; i < taken.size(); ++i)
    add_note(first,
             nb::str(("also raised, " + where(taken[i]) + ":\n").c_str()) + traceback_of(exception_of(taken[i])));
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(first.ptr())), first.ptr());
  throw nb::python_error();
}

void print_failures() {
  for (Failure &failure : take([](const Failure &) { return true; })) {
    nb::object exception = exception_of(failure);
    add_note(exception, nb::str(("not raised before the program ended; call weft.check(), " + where(failure)).c_str()));
    nb::module_::import_("traceback").attr("print_exception")(exception);
  }
}

}  // namespace weft
