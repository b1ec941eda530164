// Verb, name of the answer and examples of each task.
const EXAMPLES = {
  translate: ["A young girl in a yellow dress is riding her bicycle.", "Two men are playing football in a park.", "A dog runs through the snow."],
  generate: ["ROMEO:", "The king", "Once upon a time"],
  classify: ["a gripping and beautiful film", "too long, and never funny", "it has its moments"],
  fill: ["The capital of France is [MASK].", "He plays the [MASK] in a band.", "It was a [MASK] day."],
  answer: ["When is the meeting?", "Who wrote the letter?", "Where do they live?"],
  embed: ["The river rose after the rain.", "He sat on the bank of the river.", "She works at a bank."],
};
export const VERB = { translate: "Translate", generate: "Continue", classify: "Classify", fill: "Fill in", answer: "Answer", embed: "Embed" };
export const ANSWER = { translate: "Translation", generate: "Continuation", classify: "Label", fill: "Filled in", answer: "Answer", embed: "Vector" };

// Example texts of a model: those of its validation text where the folder has them, else of its task.
export const examplesFor = (model) => (model?.examples?.length ? model.examples : EXAMPLES[model?.task] ?? EXAMPLES.embed);

// Whether a text has a word to fill in.
export const isMasked = (text) => /\[MASK\]/.test(text ?? "");

export const isReady = (model, params) => Boolean(model && (params.text ?? "").trim() && (model.task !== "answer" || (params.passage ?? "").trim()));
