// The request that the page's settings describe.

import { $, number } from './dom.js'
import { guideNow } from './guides.js'
import { toolsNow } from './tools.js'

let models = []

export const setModels = list => { models = list }
export const modelNamed = id => models.find(model => model.id === id) ?? models[0]

/** Build a request: a chat's if there are `messages`. The number of drafts is at most the model's. */
export function request({ model, drafts, guided = true, messages, seed }) {
  const common = {
    model,
    max_drafts: Math.min(drafts, modelNamed(model).num_draft_tokens),
    guide: guided ? guideNow() : undefined,
    temperature: number('temperature'),
    max_tokens: number('max-tokens'),
    seed: seed ?? number('seed'),
    stream: true,
    stream_options: { include_usage: true },
  }
  if (messages) return { path: 'v1/chat/completions', body: { ...common, messages, ...toolsNow(), logprobs: true, top_logprobs: 5 } }
  return { path: 'v1/completions', body: { ...common, prompt: $('prompt').value, logprobs: 5, token_details: true } }
}
