#include <nanobind/stl/string.h>

#include <optional>
#include <utility>

#include "grammar/python/wrap.h"
#include "hostfunc/gil.h"

namespace nb = nanobind;

namespace weft {
namespace {

std::string text_of(const std::exception &raised, const char *method) {
  std::string text = raised.what();
  // Keep only the last line of what(), which names the error, and drop the traceback before it.
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t last = text.rfind('\n');
  if (last != std::string::npos) text.erase(0, last + 1);
  return std::string(method) + ": " + text;
}

struct Methods {
  nb::object object, push_byte, pop_bytes, byte_allowed, special_allowed;
  nb::object try_push_byte, collapse, trie_finished, fork;  // or None

  explicit Methods(nb::object from) : object(std::move(from)) {
    const auto needed = [&](const char *name) {
      nb::object method = nb::getattr(object, name, nb::none());
      if (!PyCallable_Check(method.ptr()))
        throw nb::type_error((std::string("a recogniser needs a method ") + name).c_str());
      return method;
    };
    push_byte = needed("push_byte");
    pop_bytes = needed("pop_bytes");
    byte_allowed = needed("byte_allowed");
    special_allowed = needed("special_allowed");
    try_push_byte = nb::getattr(object, "try_push_byte", nb::none());
    collapse = nb::getattr(object, "collapse", nb::none());
    trie_finished = nb::getattr(object, "trie_finished", nb::none());
    fork = nb::getattr(object, "fork", nb::none());
  }
};

class Python : public Recognizing {
 public:
  explicit Python(nb::object object) : methods_(std::in_place, std::move(object)) {}
  Python(const Python &) = delete;
  Python &operator=(const Python &) = delete;
  ~Python() override {
    GilForCallback gil("destroy", "recogniser");
    if (gil) {
      methods_.reset();
    } else {
      new std::optional<Methods>(std::move(methods_));  // leaked: without an interpreter it cannot be released
    }
  }

  int enter() override {
    gil_.emplace("recogniser", "matcher");
    if (*gil_) return 0;
    gil_.reset();
    return error_ = "the interpreter is shutting down", -1;
  }
  void leave() override { gil_.reset(); }

  int pop_bytes(int count) override {
    return call("pop_bytes", [&] { return methods_->pop_bytes(count), 0; });
  }
  int byte_allowed(std::uint8_t byte) override {
    return call("byte_allowed", [&] { return truth(methods_->byte_allowed(byte)); });
  }
  int special_allowed(std::int32_t token) override {
    return call("special_allowed", [&] { return truth(methods_->special_allowed(token)); });
  }
  int try_push_byte(std::uint8_t byte) override {
    return call("try_push_byte", [&] {
      if (!methods_->try_push_byte.is_none()) return truth(methods_->try_push_byte(byte));
      if (!truth(methods_->byte_allowed(byte))) return 0;
      methods_->push_byte(byte);
      return 1;
    });
  }
  bool collapses() override { return !methods_->collapse.is_none(); }
  int collapse() override { return optional("collapse", methods_->collapse); }
  int trie_finished() override { return optional("trie_finished", methods_->trie_finished); }
  std::unique_ptr<Recognizing> fork() override {
    std::unique_ptr<Recognizing> copy;
    if (!methods_->fork.is_none()) call("fork", [&] { return copy = std::make_unique<Python>(methods_->fork()), 0; });
    return copy;
  }
  std::string error() override { return error_; }

 private:
  static int truth(const nb::object &value) { return nb::cast<bool>(nb::bool_(value)) ? 1 : 0; }

  int optional(const char *name, const nb::object &method) {
    return method.is_none() ? 0 : call(name, [&] { return method(), 0; });
  }

  template <class Body>
  int call(const char *name, Body body) {
    try {
      return body();
    } catch (const std::exception &raised) {
      error_ = text_of(raised, name);
      return -1;
    }
  }

  std::optional<Methods> methods_;
  std::optional<GilForCallback> gil_;
  std::string error_;
};

}  // namespace

std::unique_ptr<Recognizing> python_recognizer(const nb::object &factory, std::string &error) {
  GilForCallback gil("recogniser", "matcher");
  if (!gil) return error = "the interpreter is shutting down", nullptr;
  try {
    return std::make_unique<Python>(factory());
  } catch (const std::exception &raised) {
    error = text_of(raised, "the factory");
  }
  return nullptr;
}

}  // namespace weft
