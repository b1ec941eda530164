// One lesson per concept, by its key in docs/concepts.md: title, equation, the view that shows it, instructions, and the
// state to open it in.
const LESSON = (title, equation, view, text, state = {}) => ({ title, equation, view, text, state });
const study = (name) => ({ study: name });

export const SECTIONS = [
  ["Tokens and embeddings", {
    E1: LESSON("Tokens and their table", "x_i = E[t_i]", "look", "A text is cut into tokens, each with one row of the table of embeddings. Switch between “words” and “tokens” above the ribbons.", { unit: "tokens" }),
    E2: LESSON("Word vectors", "cos(u, v) = u·v / |u||v|", "vectors", "Similar words have similar vectors. Type a word, then drag words into a − b + c.", { mode: null }),
    E3: LESSON("The next word", "P(w) ∝ exp(T(w)·U(x))", "steps", "The next word is a softmax over inner products of the last state with every token's vector. The last step, Output distribution, shows it.", { phase: "choice" }),
    E4: LESSON("One vector per occurrence", "", "vectors", "The same word in several sentences has several vectors. Compare “bank” by the river with “bank” in the city.", { mode: "occurrences" }),
  }],
  ["Attention", {
    A1: LESSON("Soft look-up", "A(q, D) = Σ α(q, k_i) v_i", "look", "Each row of weights is a distribution over the tokens that are read. Click a word: the weights in the line below add up to 100%."),
    A2: LESSON("Ways to score a match", "q·k,  qᵀWk,  q·k/√d_k", "steps", "A score compares a query with a key. Point at a row to see its dot product.", { phase: "attention" }),
    A3: LESSON("Scaled dot product", "softmax(QKᵀ/√d_k) V", "steps", "Scores are divided by √d_k and pass the softmax; the weights average the values. Edit a score and watch the weights.", { phase: "attention" }),
    A4: LESSON("Self-attention and cross-attention", "Q = X W_q,  K, V = Y W_k, Y W_v", "steps", "Self-attention reads its own tokens, cross-attention those of the encoder. Go from one step to the other.", { phase: "cross" }),
    A5: LESSON("Several heads", "Concat(h_1 … h_H) W_o = Σ h_h W_h", "look", "Several heads read the same words differently, and their outputs are added. Open one after the other; pin two to compare them."),
    A6: LESSON("Masks", "softmax(QKᵀ/√d_k + B)", "switch", "The causal mask keeps a token from attending to later ones. Choose “no causal mask” and compare the answers."),
    A7: LESSON("Permutation equivariance", "f(PX) = P f(X)", "switch", "Without positions and masks the order of the words is lost. Choose “without positions”, then swap two words of the text."),
    A8: LESSON("The cost", "n² products for n tokens", "look", "Every token may read every other: the map has n × n cells, and so has the work. Make the text twice as long and count."),
    A9: LESSON("Reading the weights", "", "look", "In translation, some head's weights align the words of both languages: the one with the star, as measured on validation text."),
    A10: LESSON("Query, key and value as functions", "q = f_q(x),  k = f_k(x),  v = f_v(x)", "steps", "Here the query is a matrix times the token's vector. In general it may be any function: --set model.projection=network trains small networks instead, and exclude_self=true leaves a query's own token out.", { phase: "attention" }),
  }],
  ["Positions", {
    P1: LESSON("Sinusoids", "sin(i / 10000^(2j/d))", "steps", "Each position has its own vector, or its own rotation. Press → to move to the next token, and watch it change.", { phase: "positions" }),
    P2: LESSON("A learned table", "x_i + P[i]", "steps", "With --set model.positions=learned the vector of a position is learned like a word's, and there is none beyond the table's end. Example 2 below computes a sinusoid instead.", { phase: "positions", example: "2" }),
    P3: LESSON("Where positions enter", "x + PE,  or R_i q · R_j k", "steps", "Positions are added to embeddings, or they turn queries and keys. The step Position shows which of both this model does.", { phase: "positions" }),
    P4: LESSON("The end of a learned table", "", "lab", "Positions that few training texts reach are trained least. The study “beyond” measures the loss by position.", study("beyond")),
  }],
  ["The block", {
    B1: LESSON("The skip-connection", "x + f(x)", "switch", "The arc at the right of each part carries its input around it. Switch one off and compare the answers."),
    B2: LESSON("Normalization", "γ (x − μ)/√(σ² + ε) + β", "steps", "The norm gives each vector mean 0 and variance 1, before a learned gain. Read both below the strips.", { phase: "norm" }),
    B3: LESSON("Feed-forward", "max(0, x W_1 + b_1) W_2 + b_2", "steps", "The feed-forward network works on each token alone. Count its hidden units that are above zero.", { phase: "feed-forward" }),
    B4: LESSON("The encoder's layer", "", "switch", "An encoder layer is self-attention and a feed-forward network. Click their names for the equations."),
    B5: LESSON("The decoder's layer", "", "switch", "A decoder layer has self-attention, cross-attention to the encoder (the lines from the left) and a feed-forward network. Switch cross-attention off."),
    B6: LESSON("The stack", "f_L ∘ … ∘ f_1", "look", "Layers are functions one after another. The logit lens shows the prediction after each layer.", { lens: "1" }),
    B7: LESSON("Smaller blocks", "", "switch", "How small can a block be? Switch off a feed-forward network, then its skip-connection."),
  }],
  ["The families", {
    F1: LESSON("Encoder-decoder", "P(y_t | y_<t, x)", "use", "An encoder-decoder maps one text to another. Type a text and read the answer."),
    F2: LESSON("Decoder only", "P(x_t | x_<t)", "use", "A decoder continues a text, one token at a time. Choose a language model at the top."),
    F3: LESSON("Encoder only", "", "look", "An encoder reads in both directions and writes nothing: its states are used. Choose a classifier or a masked language model at the top."),
    F4: LESSON("Recurrent language model", "h_t = g(h_(t−1), x_t)", "train", "A recurrent network carries one state from word to word. Train one on running text.", { task: "generate", kind: "recurrent" }),
    F5: LESSON("Recurrent, with one vector", "c = h_n", "lab", "Without attention the whole source must pass through one vector. The study “bottleneck” measures what long sentences lose.", study("bottleneck")),
    F6: LESSON("The same with attention", "c_i = Σ α_ij h_j", "compare", "A recurrent model with attention beside a transformer, on the same text. Choose a word: it is chosen on both sides."),
    F7: LESSON("Other encoders and decoders", "", "lab", "Encoder and decoder may be any network: the study “windows” uses feed-forward networks over a few words.", study("windows")),
  }],
  ["Learning", {
    T1: LESSON("Teacher forcing", "", "look", "Given the right answer, all positions are predicted in one pass: the ribbons of all words appear at once."),
    T2: LESSON("The loss", "−1/N Σ log P(y_t)", "train", "The loss is the mean over all real tokens of the batch. Open a run and watch it fall."),
    T3: LESSON("Padding", "", "look", "Texts of different lengths share a batch, filled up with padding that is masked. Two lines below, of different lengths: each looks as it does alone.", {}),
    T4: LESSON("Pre-training", "", "train", "Hide words of running text and let the model fill them in: no labels are needed. Choose “fill in”, select a text, start.", { task: "fill" }),
    T5: LESSON("Fine-tuning", "", "use", "A trained model learns a little more on a few examples: correct an answer, save the pair, then “Fine-tune on corrections”."),
    T6: LESSON("Attention and gradient flow", "|∂L/∂x_1|", "lab", "Attention shortens the way of the gradient to the first word. The study “bottleneck” measures its norm.", study("bottleneck")),
  }],
  ["Use", {
    G1: LESSON("Generating token by token", "", "steps", "The encoder runs once; the decoder writes one token at a time. Scroll to the beam search and let it grow step by step.", { until: "0" }),
    G2: LESSON("Completing a prompt", "", "use", "Type the beginning of a text, and change the temperature. It takes a language model: choose one at the top."),
    G3: LESSON("Filling in a masked word", "", "use", "Replace a word by [MASK]. It takes a masked language model: choose one at the top."),
    G4: LESSON("Classifying and answering", "", "use", "A classifier names a label; a question answerer marks the answer in its passage. Choose one at the top."),
  }],
  ["Questions left open", {
    Q1: LESSON("What is special about self-attention?", "", "lab", "The study “form” compares score functions, no softmax and a feed-forward mixer at equal size; “approximation” compares how both grow.", study("form")),
    Q2: LESSON("Positions or causal mask?", "", "lab", "Both break the equivariance of A7. The study “order” asks whether one can stand in for the other.", study("order")),
    Q3: LESSON("What is the skip-connection for?", "", "lab", "The study “skips” trains ever deeper models with and without.", study("skips")),
    Q4: LESSON("Why divide by √d_k?", "", "lab", "The study “scale” changes the divisor and watches the softmax.", study("scale")),
    Q5: LESSON("What does the feed-forward add?", "", "lab", "The study “averaging” leaves it out: repeated averages alone.", study("averaging")),
    Q6: LESSON("How does sentence length affect quality?", "", "lab", "The study “bottleneck” scores by length; Compare does it for two models of yours.", study("bottleneck")),
    Q7: LESSON("How do time and memory grow?", "", "lab", "The study “cost” measures both against the length and fits the exponent.", study("cost")),
    Q8: LESSON("Beyond the trained length", "", "lab", "The study “beyond” reads texts eight times as long as those in training.", study("beyond")),
    Q9: LESSON("Do feed-forward networks represent order?", "", "lab", "The study “windows” concatenates, sums, or adds positions.", study("windows")),
  }],
  ["Worked numbers", {
    N1: LESSON("help me!", "softmax(6/√16, 4/√16) = 0.62, 0.38", "steps", "Two scores, divided and exponentiated. Change them.", { example: "1" }),
    N2: LESSON("Show me the money", "E[money] + PE_3", "steps", "An embedding plus its position, in radians. Move the position.", { example: "2" }),
    N3: LESSON("Not on your life!", "6 × 6 scores, d_k = 64", "steps", "Lift the causal mask, change d_k, and compare with what the notes print.", { example: "3" }),
  }],
];

export const LESSONS = Object.assign({}, ...SECTIONS.map(([, lessons]) => lessons));
export const KEYS = Object.keys(LESSONS);
