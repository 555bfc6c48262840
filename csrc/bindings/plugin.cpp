// Recognisers and plug-ins, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/matcher.h"
#include "grammar/plugin/library.h"
#include "grammar/python/wrap.h"
#include "grammar/recognizer/matcher.h"
#include "hostfunc/gil.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace weft {
namespace {

// Keeps a Python object alive from C++. The deleter takes the GIL, because the thread that drops the last reference may
// not hold it.
std::shared_ptr<nb::object> keep(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object *kept) {
            GilForCallback gil("destroy", "recogniser");
            if (gil) delete kept;
          }};
}

}  // namespace

void bind_plugin(nb::module_ &m) {
  nb::class_<TokenTrie>(m, "TokenTrie", "The tokens of a vocabulary as a tree of their bytes.")
      .def(nb::init<const TokenTexts &, int>(), "texts"_a, "vocab_size"_a)
      .def_prop_ro("memory_bytes", &TokenTrie::memory_bytes);

  nb::class_<RecognizerGuide>(m, "RecognizerGuide", "Makes matchers over recognisers that `factory` makes.")
      .def(
          "__init__",
          [](RecognizerGuide *self, std::shared_ptr<TokenTexts> texts, std::shared_ptr<TokenTrie> trie, int vocab_size,
             std::vector<std::int32_t> end_tokens, nb::object factory) {
            auto make = [kept = keep(std::move(factory))](std::string &error) {
              return python_recognizer(*kept, error);
            };
            new (self)
                RecognizerGuide{std::move(texts), std::move(trie), vocab_size, std::move(end_tokens), std::move(make)};
          },
          "texts"_a, "trie"_a, "vocab_size"_a, "end_tokens"_a, "factory"_a)
      .def("matcher", [](std::shared_ptr<RecognizerGuide> self) {
        std::string error;
        const weft_matcher made = recognizer_matcher(std::move(self), error);
        if (!made.ops) raise("GuideError", error);
        return wrap(made, true);
      });

  nb::class_<PluginGuide>(m, "PluginGuide", "A guide that a plug-in prepared.")
      .def(
          "__init__",
          [](PluginGuide *self, const std::string &path, std::shared_ptr<TokenTexts> texts,
             std::vector<std::int32_t> end_tokens, int vocab_size, const nb::bytes &arg) {
            try {
              nb::gil_scoped_release release;
              new (self) PluginGuide(load_plugin(path), std::move(texts), std::move(end_tokens), vocab_size,
                                     {arg.c_str(), arg.size()});
            } catch (const std::runtime_error &failed) {
              raise("GuideError", failed.what());
            }
          },
          "path"_a, "texts"_a, "end_tokens"_a, "vocab_size"_a, "arg"_a)
      .def_prop_ro("recognizes", &PluginGuide::recognizes)
      .def(
          "matcher",
          [](std::shared_ptr<PluginGuide> self, std::shared_ptr<TokenTexts> texts, std::shared_ptr<TokenTrie> trie,
             int vocab_size, std::vector<std::int32_t> end_tokens) {
            try {
              return wrap(plugin_matcher(std::move(self), std::move(texts), std::move(trie), vocab_size,
                                         std::move(end_tokens)));
            } catch (const std::runtime_error &failed) {
              raise("GuideError", failed.what());
            }
          },
          "texts"_a, "trie"_a.none(), "vocab_size"_a, "end_tokens"_a,
          "A matcher at its start; a guide that recognises needs `trie`.");
}

}  // namespace weft
