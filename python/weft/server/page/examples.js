// The examples: those of weft-tiny, and those of any other model.

import { $, make } from './dom.js'
import { newChat } from './chat.js'
import { setGuide } from './guides.js'

const object = properties => ({ type: 'object', properties, required: Object.keys(properties), additionalProperties: false })
const oneLine = value => JSON.stringify(value, null, 1).replace(/\n\s*/g, ' ').replace(/([{[]) | ([}\]])/g, '$1$2')
const written = schema => `{\n${Object.entries(schema).map(([name, value]) => `  "${name}": ${oneLine(value)}`).join(',\n')}\n}`
const TEXT = { type: 'string' }, WHOLE = { type: 'integer' }
const ADA = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
const LARK = 'start: "{" pair (", " pair)* "}"\npair: KEY ": " (TEXT | NUMBER)\nKEY: /"[a-z]+"/\nTEXT: /"[A-Za-z .-]+"/\nNUMBER: /[0-9]+/\n'
export const TINY_EXAMPLES = [
  ['Schema', ADA, 'json_schema', object({ name: TEXT, age: WHOLE })],
  ['Longer', 'Text: At the Garden Theatre. The city is Bern. With Gus Gupta, Luis Meyer and Luis Popov. Reply within 3 days.\nSchema: {"location": {"town": string, "venue": string}, "part": {"speakers": [string]}}\nJSON: ', 'json_schema',
    object({ location: object({ town: TEXT, venue: TEXT }), part: object({ speakers: { type: 'array', items: TEXT } }) })],
  ['Regex', 'Text: Meet on 2026-03-14 in Oslo.\nSchema: {"date": string}\nJSON: ', 'regex', '\\{"date": "20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"\\}'],
  ['Lark', ADA, 'lark', LARK],
  ['Overruled', ADA, 'json_schema', object({ person: TEXT, years: TEXT })],
  ['Free', ADA, 'none', ''],
]
const QUESTION = 'Name a city in Europe and roughly how many people live there.'
export const EXAMPLES = [
  ['Schema', QUESTION, 'json_schema', object({ city: TEXT, people: WHOLE })],
  ['Regex', QUESTION, 'regex', '[A-Z][a-z]+, about [0-9]{1,2}(\\.[0-9])? million people\\.'],
  ['Lark', 'Write three short lines about the sea.', 'lark', 'start: LINE "\\n" LINE "\\n" LINE\nLINE: /[A-Z][a-z ,]{10,50}\\./\n'],
  ['Choice', 'Is the sea salty? Answer yes, no or it depends.', 'choice', 'yes\nno\nit depends'],
  ['Free', 'Why is the sky blue? Two sentences.', 'none', ''],
]

export function showExamples(list) {
  $('examples').replaceChildren(...list.map(([name, prompt, kind, text]) => make('button', {
    type: 'button', class: 'chip', onclick: () => {
      newChat()
      $('prompt').value = prompt
      setGuide(kind, typeof text === 'string' ? text : written(text))
    },
  }, name)))
}
