// The examples: those of weft-tiny, and those of any other model.

import { $, make } from './dom.js'
import { newChat } from './chat.js'
import { setGuide } from './guides.js'

const object = properties => ({ type: 'object', properties, required: Object.keys(properties), additionalProperties: false })
const TEXT = { type: 'string' }, WHOLE = { type: 'integer' }
const LINE_LENGTH = 46

/** JSON with the parts that fit into a line on one line. */
function written(value, indent = '') {
  const compact = JSON.stringify(value, null, 1).replace(/\n\s*/g, ' ').replace(/([{[]) | ([}\]])/g, '$1$2')
  if (typeof value !== 'object' || Array.isArray(value) || (indent && indent.length + compact.length < LINE_LENGTH)) return compact
  const lines = Object.entries(value).map(([name, part]) => `${indent}  "${name}": ${written(part, `${indent}  `)}`)
  return `{\n${lines.join(',\n')}\n${indent}}`
}

const ADA = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
const LARK = 'start: "{" pair (", " pair)* "}"\npair: KEY ": " (TEXT | NUMBER)\nKEY: /"[a-z]+"/\nTEXT: /"[A-Za-z .-]+"/\nNUMBER: /[0-9]+/\n'

/** Examples: their name, a sentence about them, prompt, kind of guide, and its text or schema. */
export const TINY_EXAMPLES = [
  ['Schema', 'The answer is JSON that obeys a schema.', ADA, 'json_schema', object({ name: TEXT, age: WHOLE })],
  ['Longer', 'A nested schema, and an answer long enough for a race.',
    'Text: At the Garden Theatre. The city is Bern. With Gus Gupta, Luis Meyer and Luis Popov. Reply within 3 days.\nSchema: {"location": {"town": string, "venue": string}, "part": {"speakers": [string]}}\nJSON: ', 'json_schema',
    object({ location: object({ town: TEXT, venue: TEXT }), part: object({ speakers: { type: 'array', items: TEXT } }) })],
  ['Regex', 'The date must be of this century, and the answer ends with it.',
    'Text: Meet on 2026-03-14 in Oslo.\nSchema: {"date": string}\nJSON: ', 'regex', '\\{"date": "20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"\\}'],
  ['Lark', 'The same form as a grammar in Lark’s notation.', ADA, 'lark', LARK],
  ['Overruled', 'The prompt wants “name” and “age”, the guide “person” and “years”. The guide wins: see the red waves.',
    ADA, 'json_schema', object({ person: TEXT, years: WHOLE })],
  ['Free', 'No guide: the model alone.', ADA, 'none', ''],
]
const QUESTION = 'Name a city in Europe and roughly how many people live there.'
export const EXAMPLES = [
  ['Schema', 'The answer is JSON that obeys a schema.', QUESTION, 'json_schema', object({ city: TEXT, people: WHOLE })],
  ['Regex', 'The answer has the form of a regular expression.', QUESTION, 'regex', '[A-Z][a-z]+, about [0-9]{1,2}(\\.[0-9])? million people\\.'],
  ['Lark', 'Three lines, each a sentence of letters.', 'Write three short lines about the sea.', 'lark', 'start: LINE "\\n" LINE "\\n" LINE\nLINE: /[A-Z][a-z ,]{10,90}\\./\n'],
  ['Choice', 'One of three answers.', 'Is the sea salty? Answer yes, no or it depends.', 'choice', 'yes\nno\nit depends'],
  ['Free', 'No guide: the model alone.', 'Why is the sky blue? Two sentences.', 'none', ''],
]

/** Show the buttons of the examples. A click fills in the prompt and the guide. */
export function showExamples(examples) {
  $('about').hidden = true
  $('examples').replaceChildren(...examples.map(([name, about, prompt, kind, guide]) => make('button', {
    type: 'button', class: 'chip', onclick: () => {
      newChat()
      $('about').textContent = about
      $('about').hidden = false
      $('prompt').value = prompt
      setGuide(kind, typeof guide === 'string' ? guide : written(guide))
    },
  }, name)))
}
