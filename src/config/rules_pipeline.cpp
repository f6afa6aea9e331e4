// Rules: how layers are cut into stages, how many chunks a rank holds, and what the schedules want.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "config/interleaving.hpp"
#include "config/layer_pattern.hpp"
#include "config/rules.hpp"

namespace primus::config {
namespace {

constexpr std::string_view kLayout = "pipeline_model_parallel_layout";
constexpr std::string_view kSplitList = "decoder_pipeline_manual_split_list";
constexpr std::string_view kStages = "pipeline_model_parallel_size";
constexpr std::string_view kChunks = "num_virtual_stages_per_pipeline_rank";
constexpr std::string_view kLayersPerChunk = "num_layers_per_virtual_pipeline_stage";
constexpr std::string_view kOldChunks = "virtual_pipeline_model_parallel_size";

std::int64_t num_mtp_layers(const Experiment& experiment) {
  return experiment.get_optional_int("mtp_num_layers").value_or(0);
}

std::vector<std::int64_t> split_list(const Experiment& experiment) {
  std::vector<std::int64_t> layers;
  if (const auto* list = std::get_if<Value::List>(&experiment.setting(kSplitList).value.data)) {
    for (const Value& item : *list) layers.push_back(std::get<std::int64_t>(item.data));
  }
  return layers;
}

// Who cuts the layers means to have several ranks: that is the remedy that is named first. `num_stages`: as far as
// known.
void demand_none(RuleContext& context, std::string_view key, std::int64_t num_stages) {
  const std::int64_t chunks = std::max(context.experiment().get_optional_int(kChunks).value_or(1),
                                       context.experiment().get_optional_int(kOldChunks).value_or(1));
  const bool are_chunks = num_stages % chunks == 0 && num_stages / chunks > 1;
  const std::int64_t ranks = are_chunks ? num_stages / chunks : num_stages;
  std::string way = num_stages == 0 ? fmt::format("set {} to 2 or more, or leave {} out", kStages, key)
                                    : fmt::format("write {}: {}, or leave {} out", kStages, ranks, key);
  context.demand(kStages, {{key, {}, std::move(way)}}, Nature::kFact);
}

// One pipeline rank has no stages to tell apart: an older layout yields to it.
void single_stage(RuleContext& context) {
  if (context.integer(kStages) > 1) return;
  const auto layout = context.is_null(kLayout) ? std::nullopt : written_layout(context.experiment());
  if (layout && layout->num_stages() > 1) demand_none(context, kLayout, layout->num_stages());
  if (const std::int64_t entries = std::ssize(split_list(context.experiment())); entries > 1)
    demand_none(context, kSplitList, entries);
  for (const std::string_view key : {kChunks, kOldChunks}) {
    if (context.experiment().get_optional_int(key).value_or(1) > 1) demand_none(context, key, 0);
  }
  for (const std::string_view key : {kLayersPerChunk, std::string_view("decoder_first_pipeline_num_layers"),
                                     std::string_view("decoder_last_pipeline_num_layers")}) {
    if (!context.is_null(key)) demand_none(context, key, 0);
  }
}

void layout_text(RuleContext& context) {
  const auto text = context.experiment().get_optional_string(kLayout);
  if (!text) return;
  const auto parsed = parse_pipeline_layout(*text);
  const auto* fault = std::get_if<LayoutFault>(&parsed);
  if (!fault) return;
  context.report(kLayout, {.message = fmt::format("character {}: {}", fault->position + 1, fault->message),
                           .nearest = fault->nearest,
                           .excerpt = text->empty() ? "" : text_with_caret(*text, fault->position)});
}

// A way of cutting excludes the others: two of them are two wishes.
void one_way_of_cutting(RuleContext& context) {
  constexpr std::array kOthers = {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
                                  "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"};
  if (!context.is_null(kLayout) && !context.is_null(kSplitList)) context.exclude({kLayout, {}}, {kSplitList, {}});
  for (const std::string_view way : {kLayout, kSplitList}) {
    for (const std::string_view other : kOthers) {
      if (context.is_null(way)) break;
      const bool is_switch = other.starts_with("account");
      if (is_switch ? !context.is_on(other) : context.is_null(other)) continue;
      context.exclude({way, {}}, {other, is_switch ? Value{false} : Value{}});
    }
  }
}

// "Et*14|t*13,L": what a user who has no layout could write.
std::string balanced_text(const Experiment& experiment, std::int64_t num_stages) {
  return fmt::format(
      "for instance {}: {}", kLayout,
      to_short_text(balanced_layout(experiment.get_int("num_layers"), num_mtp_layers(experiment), num_stages)));
}

void layout_layers(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.is_null(kLayout)) return;
  const auto parsed = parse_pipeline_layout(experiment.get_string(kLayout));
  const auto* layout = std::get_if<PipelineLayout>(&parsed);
  if (!layout) return;
  const std::int64_t layers = experiment.get_int("num_layers");
  if (layout->num_layers() != layers) {
    context.report(
        kLayout, fmt::format("places {} layers, but {}", layout->num_layers(), setting_text(experiment, "num_layers")),
        fmt::format("{} layers", layers), balanced_text(experiment, layout->num_stages()));
  }
  const std::int64_t depths = num_mtp_layers(experiment);
  if (layout->num_mtp_layers() == depths) return;
  if (layout->num_mtp_layers() == 0) {
    context.note(
        kLayout,
        fmt::format("names no prediction depths: {} of them stand{} beside the loss", depths, depths == 1 ? "s" : ""),
        "mtp_num_layers");
    return;
  }
  context.report(kLayout,
                 fmt::format("places {} prediction depths, but {}", layout->num_mtp_layers(),
                             setting_text(experiment, "mtp_num_layers")),
                 fmt::format("{} or none", depths));
}

void layout_stages(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.is_null(kLayout)) return;
  const auto layout = written_layout(experiment);
  const std::int64_t ranks = context.integer(kStages);
  if (!layout || layout->num_stages() % ranks == 0) return;
  const std::int64_t stages = layout->num_stages();
  context.report(kLayout,
                 {.message = fmt::format("its stages do not divide over {}", setting_text(experiment, kStages)),
                  .expected = fmt::format("a multiple of {} stages", ranks),
                  .found = fmt::format("{} stages", stages),
                  .nearest = balanced_text(experiment, (stages + ranks - 1) / ranks * ranks)});
}

// Depths read the last layer's output: they stand together, on the last chunk of their rank.
void prediction_depths(RuleContext& context) {
  if (context.is_null(kLayout)) return;
  const auto layout = written_layout(context.experiment());
  const std::int64_t ranks = context.integer(kStages);
  if (!layout || layout->num_stages() % ranks != 0) return;
  std::vector<std::int64_t> holders;
  for (std::int64_t i = 0; i < layout->num_stages(); ++i) {
    if (layout->stages[static_cast<std::size_t>(i)].num_mtp_layers > 0) holders.push_back(i);
  }
  if (holders.size() > 1) {
    context.report(kLayout, {.message = "the prediction depths stand in more than one stage",
                             .expected = "all m in one stage",
                             .found = fmt::format("stages {} and {}", holders[0], holders[1])});
  } else if (holders.size() == 1 && holders[0] < layout->num_stages() - ranks) {
    context.report(kLayout, {.message = "prediction depths stand on the last chunk of a rank",
                             .expected = fmt::format("m in one of the last {} stages", ranks),
                             .found = fmt::format("stage {} of 0 to {}", holders[0], layout->num_stages() - 1)});
  }
}

// The layers, shared evenly by so many entries.
std::string split_list_text(std::int64_t layers, std::int64_t entries) {
  std::string text;
  for (std::int64_t i = 0; i < entries; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(layers / entries + (i < layers % entries ? 1 : 0));
  }
  return fmt::format("for instance {}: [{}]", kSplitList, text);
}

void manual_split(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::vector<std::int64_t> layers = split_list(experiment);
  if (context.is_null(kSplitList)) return;
  const std::int64_t ranks = context.integer(kStages);
  if (layers.empty() || static_cast<std::int64_t>(layers.size()) % ranks != 0) {
    context.report(kSplitList,
                   {.message = fmt::format("its entries do not divide over {}", setting_text(experiment, kStages)),
                    .expected = fmt::format("a multiple of {} entries", ranks),
                    .found = fmt::format("{} entries", layers.size()),
                    .nearest = split_list_text(context.integer("num_layers"), ranks)});
    return;
  }
  if (std::any_of(layers.begin(), layers.end(), [](std::int64_t count) { return count < 0 || count > 100'000; })) {
    context.report(kSplitList, "a stage cannot hold that many layers", "integers from 0 to 100000");
    return;
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : layers) sum += count;
  if (sum != context.integer("num_layers")) {
    context.report(kSplitList, fmt::format("places {} layers, but {}", sum, setting_text(experiment, "num_layers")),
                   fmt::format("{} layers in all", context.integer("num_layers")),
                   split_list_text(context.integer("num_layers"), std::ssize(layers)));
    return;
  }
  context.note(kSplitList,
               fmt::format("the older spelling of {}: {}", kLayout, to_short_text(*written_layout(experiment))));
}

constexpr std::string_view kCountedEnds[] = {"account_for_embedding_in_pipeline_split",
                                             "account_for_loss_in_pipeline_split"};

// Embedding and output layer where they count as layers.
std::int64_t num_counted_ends(const Experiment& experiment) {
  return std::count_if(std::begin(kCountedEnds), std::end(kCountedEnds),
                       [&](std::string_view key) { return experiment.get_bool(key); });
}

struct Spelling {
  std::string_view key;
  std::int64_t chunks = 1;
};

// Chunks on a rank by each spelling that the experiment uses. 1 is what leaving a key out means.
std::vector<Spelling> spellings_of(const Experiment& experiment) {
  std::vector<Spelling> spellings;
  const std::int64_t ranks = experiment.get_int(kStages);
  for (const std::string_view key : {kChunks, kOldChunks}) {
    if (const auto chunks = experiment.get_optional_int(key); chunks && *chunks > 1)
      spellings.push_back({key, *chunks});
  }
  if (const auto layers = experiment.get_optional_int(kLayersPerChunk)) {
    const std::int64_t chunks = (experiment.get_int("num_layers") + num_counted_ends(experiment)) / ranks / *layers;
    if (chunks > 1) spellings.push_back({kLayersPerChunk, chunks});
  }
  return spellings;
}

void chunks_on_a_rank(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  std::vector<Spelling> spellings = spellings_of(experiment);
  const auto layout = written_layout(experiment);
  const std::int64_t ranks = context.integer(kStages);
  if (layout && layout->num_stages() % ranks == 0) {
    const std::int64_t chunks = layout->num_stages() / ranks;
    for (const Spelling& other : spellings) {
      if (other.chunks == chunks) continue;
      context.report(other.key,
                     fmt::format("{} stages on {} ranks are {} chunks a rank", layout->num_stages(), ranks, chunks),
                     fmt::format("{}, or null", chunks), "the layout alone says it: leave this key out");
    }
    return;
  }
  // A spelling that yields may leave two others that disagree.
  for (std::size_t round = 1; round < spellings.size(); ++round) {
    const auto other = std::find_if(spellings.begin(), spellings.end(),
                                    [&](const Spelling& row) { return row.chunks != spellings.front().chunks; });
    if (other == spellings.end()) return;
    const std::size_t num_problems = context.problems().size();
    context.exclude({spellings.front().key, {}}, {other->key, {}});
    if (context.problems().size() > num_problems) return;
    spellings = spellings_of(experiment);
  }
}

constexpr std::string_view kEndCounts[] = {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"};

// The first and the last rank have a number of layers of their own; the others share what is left.
struct EndShares {
  std::int64_t rest = 0;
  std::int64_t others = 0;

  bool are_even(std::int64_t chunks) const {
    if (rest < 0) return false;
    return others == 0 ? rest == 0 : rest % others == 0 && rest / others % chunks == 0;
  }
};

EndShares end_shares(const RuleContext& context) {
  EndShares shares{context.integer("num_layers") + num_counted_ends(context.experiment()), context.integer(kStages)};
  for (const std::string_view key : kEndCounts) {
    const auto count = context.experiment().get_optional_int(key);
    if (!count) continue;
    shares.rest -= *count;
    --shares.others;
  }
  return shares;
}

// A layout for the stages that the user's other keys ask for, and which of them it replaces: chunks for which there are
// not enough layers, and other ways of cutting.
std::string layout_instead(const RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t ranks = context.integer(kStages);
  const std::vector<Spelling> spellings = spellings_of(experiment);
  const std::int64_t chunks = spellings.empty() ? 1 : spellings.front().chunks;
  // Embedding and loss may stand alone; a layout of more stages than that would hold empty ones.
  const std::int64_t layers = context.integer("num_layers");
  if (ranks > layers + 2) return fmt::format("nearest: {}", nearest_divisor(layers, ranks));
  const bool fits = ranks * chunks <= context.integer("num_layers");
  std::string text = balanced_text(experiment, fits ? ranks * chunks : ranks);
  std::vector<std::string_view> left_out;
  for (const Spelling& spelling : spellings) {
    if (!fits) left_out.push_back(spelling.key);
  }
  std::copy_if(std::begin(kEndCounts), std::end(kEndCounts), std::back_inserter(left_out),
               [&](std::string_view key) { return !context.is_null(key); });
  std::copy_if(std::begin(kCountedEnds), std::end(kCountedEnds), std::back_inserter(left_out),
               [&](std::string_view key) { return context.is_on(key); });
  for (const std::string_view key : left_out)
    text += (key == left_out.front() ? " without " : " and ") + std::string(key);
  return text;
}

// A number of layers for `key` that the other ranks and all chunks can live with, nearest to what is there.
std::string nearest_end_count(const RuleContext& context, std::string_view key) {
  const std::int64_t chunks = virtual_pipeline_size(context.experiment());
  const std::int64_t now = context.integer(key);
  const EndShares shares = end_shares(context);
  const std::int64_t most = context.integer("num_layers") + now;
  for (std::int64_t distance = 0; distance <= most; ++distance) {
    for (const std::int64_t count : {now - distance, now + distance}) {
      if (count < 0 || count % chunks != 0) continue;
      if (EndShares{shares.rest + now - count, shares.others}.are_even(chunks))
        return fmt::format("nearest: {}", count);
    }
  }
  return layout_instead(context);
}

// Without a layout the layers divide evenly, what first and last stages are promised left aside.
void even_stages(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t ranks = context.integer(kStages);
  if (ranks == 1 || !context.is_null(kLayout) || !context.is_null(kSplitList)) return;
  const EndShares shares = end_shares(context);
  if (shares.others < ranks) {
    const std::string_view key = experiment.is_null(kEndCounts[1]) ? kEndCounts[0] : kEndCounts[1];
    if (shares.are_even(1)) return;
    if (shares.rest < 0) {
      context.report(key, fmt::format("the ends ask for more layers than {}", setting_text(experiment, "num_layers")),
                     "what leaves the other stages an equal share", nearest_end_count(context, key));
      return;
    }
    context.report(key,
                   fmt::format("leaves {} layers for the other {} stages of {}", shares.rest, shares.others,
                               setting_text(experiment, kStages)),
                   "what the other stages can share evenly", nearest_end_count(context, key));
    return;
  }
  if (shares.rest % ranks != 0) {
    const std::int64_t pseudo = num_counted_ends(experiment);
    const std::string extra = pseudo > 0 ? fmt::format(" (and {} for embedding and loss)", pseudo) : "";
    context.report(kStages, fmt::format("does not divide {}{}", setting_text(experiment, "num_layers"), extra),
                   "a divisor, or a layout", layout_instead(context));
  }
}

// The first and the last rank have a number of layers of their own; the chunks of every rank share its layers evenly.
void uneven_chunks(RuleContext& context, std::int64_t chunks) {
  const Experiment& experiment = context.experiment();
  const EndShares shares = end_shares(context);
  if (!shares.are_even(1)) return;  // which has been told
  for (const std::string_view key : kEndCounts) {
    const auto count = experiment.get_optional_int(key);
    if (!count || *count % chunks == 0) continue;
    context.report(key, fmt::format("does not divide over the {} chunks of its rank", chunks), "a multiple",
                   nearest_end_count(context, key));
    return;
  }
  if (shares.are_even(chunks)) return;
  const std::string_view key = experiment.is_null(kEndCounts[1]) ? kEndCounts[0] : kEndCounts[1];
  context.report(key,
                 fmt::format("leaves {} layers for each other rank, which do not divide over its {} chunks",
                             shares.rest / shares.others, chunks),
                 "what the other ranks can share evenly", nearest_end_count(context, key));
}

void even_chunks(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t ranks = context.integer(kStages);
  if (ranks == 1 || !context.is_null(kLayout) || !context.is_null(kSplitList)) return;
  const std::int64_t layers = context.integer("num_layers");
  const std::int64_t all = layers + num_counted_ends(experiment);
  const bool is_uneven = !context.is_null(kEndCounts[0]) || !context.is_null(kEndCounts[1]);
  if (const auto per_chunk = experiment.get_optional_int(kLayersPerChunk);
      per_chunk && !is_uneven && all % ranks == 0 && all / ranks % *per_chunk != 0) {
    context.report(kLayersPerChunk, fmt::format("does not divide the {} layers of a rank", all / ranks), "a divisor",
                   fmt::format("nearest: {}", nearest_divisor(all / ranks, *per_chunk)));
    return;
  }
  const std::int64_t chunks = virtual_pipeline_size(experiment);
  if (is_uneven) return uneven_chunks(context, chunks);
  if (chunks == 1 || all % ranks != 0 || all / ranks % chunks == 0) return;
  const bool fits = ranks * chunks <= layers && all == layers;
  context.report(spellings_of(experiment).front().key,
                 fmt::format("does not divide the {} layers of a rank", all / ranks),
                 fits ? "a divisor, or a layout" : "a divisor",
                 fits ? balanced_text(experiment, ranks * chunks)
                      : fmt::format("nearest: {}", nearest_divisor(all / ranks, chunks)));
}

void interleaving_ranks(RuleContext& context) {
  const std::int64_t ranks = context.integer(kStages);
  if (virtual_pipeline_size(context.experiment()) == 1 || ranks != 2 || context.is_on("overlap_p2p_comm")) return;
  context.report("overlap_p2p_comm", "two ranks that hold several chunks each would wait for each other", "true",
                 "or more pipeline ranks");
}

void interleaving(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const auto plan = batch_plan(experiment, context.world().size);
  if (!plan || virtual_pipeline_size(experiment) == 1) return;
  constexpr std::string_view kGroup = "microbatch_group_size_per_vp_stage";
  Interleaving shape{.ranks = context.integer(kStages), .micro_batches = plan->accumulation};
  shape.group = experiment.get_optional_int(kGroup).value_or(shape.ranks);
  if (shape.group < shape.ranks) {
    context.report(kGroup,
                   fmt::format("is smaller than {}: a chunk would wait for itself", setting_text(experiment, kStages)),
                   fmt::format("at least {}", shape.ranks), "leave it out for that many");
    return;
  }
  if (shape.is_legal()) return;
  const std::int64_t sequences = context.integer("micro_batch_size") * plan->data_parallel;
  const std::int64_t nearest = shape.nearest();
  context.report(
      "global_batch_size",
      fmt::format("makes {} micro-batches on a rank, which {} pipeline ranks cannot interleave in groups of "
                  "{}",
                  shape.micro_batches, shape.ranks, shape.group),
      fmt::format("a multiple of {}, or one that leaves a last group of at least {}", shape.group, shape.ranks),
      fmt::format("nearest: {} micro-batches, global_batch_size {}", nearest, nearest * sequences));
}

std::string chunk_text(std::int64_t chunks) {
  return fmt::format("{} chunk{}", chunks, chunks == 1 ? "" : "s");
}

// How the user who wrote the chunks in this way writes another number of them.
std::string chunk_remedy(const Experiment& experiment, std::int64_t wanted) {
  const std::int64_t ranks = experiment.get_int(kStages);
  if (!experiment.is_null(kLayout)) return balanced_text(experiment, ranks * wanted);
  const std::vector<Spelling> spellings = spellings_of(experiment);
  if (wanted == 1 && !spellings.empty()) return fmt::format("write {}: null", spellings.front().key);
  const std::string_view key = spellings.empty() ? kChunks : spellings.front().key;
  if (key != kLayersPerChunk) return fmt::format("write {}: {}", key, wanted);
  const std::int64_t layers = experiment.get_int("num_layers") / ranks / wanted;
  return fmt::format("write {}: {}", key, std::max<std::int64_t>(layers, 1));
}

void schedule(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  const std::int64_t chunks = virtual_pipeline_size(experiment);
  if (!context.is_on("patch_primus_pipeline") || context.integer(kStages) == 1) return;
  const std::string name = experiment.get_string("pp_algorithm");
  const std::int64_t wanted = is_v_shaped(experiment) ? 2 : name == "1f1b-interleaved" ? chunks : 1;
  if (chunks == wanted) return;
  context.report("pp_algorithm",
                 {.message = fmt::format("{} takes {} chunk{} on each rank", name, wanted, wanted == 1 ? "" : "s"),
                  .expected = chunk_text(wanted),
                  .found = chunk_text(chunks),
                  .nearest = chunk_remedy(experiment, wanted)});
}

// The older runtime computes weight gradients late, in buffers that nobody else may touch meanwhile.
void zero_bubble(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (context.is_on("patch_zero_bubble") && context.is_on("patch_primus_pipeline")) {
    context.exclude({"patch_zero_bubble", {false}}, {"patch_primus_pipeline", {false}});
  }
  const std::string name = experiment.get_string("pp_algorithm");
  const bool is_ours = context.is_on("patch_primus_pipeline") && !name.starts_with("1f1b");
  if (!is_ours && !context.is_on("patch_zero_bubble")) return;
  const std::string_view cause = is_ours ? "pp_algorithm" : "patch_zero_bubble";
  context.demand(cause, {{"overlap_grad_reduce", {false}},
                         {"overlap_param_gather", {false}},
                         {"no_persist_layer_norm", {true}},
                         {"create_attention_mask_in_dataloader", {false}},
                         {"gradient_accumulation_fusion", {true}}});
  if (context.is_null("fp8")) return;
  context.report("fp8", fmt::format("zero-bubble schedules do not work in fp8: {}", setting_text(experiment, cause)),
                 "null, or another schedule");
}

void zero_bubble_chunks(RuleContext& context) {
  if (!context.is_on("patch_zero_bubble") || context.integer(kStages) == 1) return;
  const std::int64_t chunks = virtual_pipeline_size(context.experiment());
  const std::int64_t wanted = is_v_shaped(context.experiment()) ? 2 : 1;
  if (chunks == wanted) return;
  context.report(wanted == 2 ? "zero_bubble_v_schedule" : "patch_zero_bubble",
                 {.message = wanted == 2 ? "the V-shaped schedule has two chunks on each rank"
                                         : "the zero-bubble schedule has one chunk on each rank",
                  .expected = chunk_text(wanted),
                  .found = chunk_text(chunks),
                  .nearest = chunk_remedy(context.experiment(), wanted)});
}

void pipeline_dump(RuleContext& context) {
  if (!context.is_on("dump_pp_data") || context.integer(kStages) > 1) return;
  context.overrule("dump_pp_data", {false}, kStages);
}

// A choice of keys does not travel between stages.
void choices_on_stages(RuleContext& context) {
  const Experiment& experiment = context.experiment();
  if (experiment.get_optional_string("experimental_attention_variant") != "dsa") return;
  const KeyChoices choices{context.integer("dsa_indexer_topk_freq"), context.integer("dsa_indexer_skip_topk_offset")};
  const auto layout = stages_of(experiment);
  if (!layout || context.integer(kStages) == 1) return;
  std::int64_t before = 0;
  for (const PipelineStage& stage : layout->stages) {
    if (stage.num_layers > 0 && !choices.are_made_in(before)) {
      context.report("dsa_indexer_topk_freq",
                     fmt::format("layer {} shares the choice of keys of layer {}, which stands on another stage: {}",
                                 before, before - 1, setting_text(experiment, kStages)),
                     "stages that begin with a layer that chooses its keys");
      return;
    }
    before += stage.num_layers;
  }
}

constexpr Rule kRules[] = {
    {"single_stage", "One pipeline rank has neither layout nor chunks; older ones yield to it.", single_stage},
    {"layout_text", "A layout follows its grammar; the fault is shown at its character.", layout_text},
    {"one_way_of_cutting", "Layout, list of layers, first and last counts and accounting exclude each other.",
     one_way_of_cutting},
    {"layout_layers", "A layout places every layer; prediction depths it does not name stand beside the loss.",
     layout_layers},
    {"layout_stages", "A layout's stages divide over the pipeline ranks.", layout_stages},
    {"prediction_depths", "Prediction depths stand in one stage, on the last chunk of its rank.", prediction_depths},
    {"manual_split", "The older list of layers divides over the pipeline ranks and places every layer.", manual_split},
    {"chunks_on_a_rank", "All spellings of the number of chunks agree; 1 means none.", chunks_on_a_rank},
    {"even_stages", "Without a layout the stages share the layers evenly.", even_stages},
    {"even_chunks", "Without a layout the chunks of a rank share its layers evenly.", even_chunks},
    {"choices_on_stages", "Layers of sparse attention that share a choice of keys stand on one stage.",
     choices_on_stages},
    {"interleaving_ranks", "Two ranks with several chunks overlap their messages.", interleaving_ranks},
    {"interleaving", "The micro-batches form groups that the interleaved schedule can take.", interleaving},
    {"schedule", "V-shaped schedules have two chunks on a rank, plain ones have one.", schedule},
    {"zero_bubble", "Zero-bubble schedules exclude each other, fp8 and overlapped reductions.", zero_bubble},
    {"zero_bubble_chunks", "The zero-bubble runtime has one chunk on a rank, its V-shaped schedule two.",
     zero_bubble_chunks},
    {"pipeline_dump", "One pipeline rank has no timeline to dump.", pipeline_dump},
};

// Layers of every rank without a layout, chunks together.
std::optional<std::vector<std::int64_t>> layers_by_rank(const Experiment& experiment, std::int64_t ranks) {
  const auto first = experiment.get_optional_int(kEndCounts[0]);
  const auto last = experiment.get_optional_int(kEndCounts[1]);
  const std::int64_t rest =
      experiment.get_int("num_layers") + num_counted_ends(experiment) - first.value_or(0) - last.value_or(0);
  const std::int64_t others = ranks - (first ? 1 : 0) - (last ? 1 : 0);
  if (rest < 0 || (others == 0 ? rest != 0 : rest % others != 0)) return std::nullopt;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), others == 0 ? 0 : rest / others);
  if (first) counts.front() = *first;
  if (last) counts.back() = *last;
  return counts;
}

// Each rank's layers are cut into its chunks; stage i is chunk i / P of rank i mod P.
std::optional<PipelineLayout> even_layout(const Experiment& experiment, std::int64_t ranks, std::int64_t chunks) {
  const auto counts = layers_by_rank(experiment, ranks);
  if (!counts) return std::nullopt;
  PipelineLayout layout = balanced_layout(0, num_mtp_layers(experiment), ranks * chunks);
  for (std::int64_t stage = 0; stage < layout.num_stages(); ++stage) {
    const std::int64_t on_rank = (*counts)[static_cast<std::size_t>(stage % ranks)];
    if (on_rank % chunks != 0) return std::nullopt;
    layout.stages[static_cast<std::size_t>(stage)].num_layers = on_rank / chunks;
  }
  // Of the ends that count as layers the stages that hold them have one layer less each.
  layout.stages.front().num_layers -= experiment.get_bool(kCountedEnds[0]) ? 1 : 0;
  layout.stages.back().num_layers -= experiment.get_bool(kCountedEnds[1]) ? 1 : 0;
  return layout;
}

}  // namespace

std::optional<PipelineLayout> stages_of(const Experiment& experiment) {
  const std::int64_t ranks = experiment.get_int(kStages);
  if (ranks == 1) return balanced_layout(experiment.get_int("num_layers"), num_mtp_layers(experiment), 1);
  if (auto written = written_layout(experiment)) return written;
  return even_layout(experiment, ranks, virtual_pipeline_size(experiment));
}

std::optional<PipelineLayout> written_layout(const Experiment& experiment) {
  if (const auto text = experiment.get_optional_string(kLayout)) {
    auto parsed = parse_pipeline_layout(*text);
    auto* layout = std::get_if<PipelineLayout>(&parsed);
    if (!layout) return std::nullopt;
    if (layout->num_mtp_layers() == 0) {
      const auto holder = std::find_if(layout->stages.begin(), layout->stages.end(),
                                       [](const PipelineStage& stage) { return stage.num_losses > 0; });
      holder->num_mtp_layers = num_mtp_layers(experiment);
    }
    return std::move(*layout);
  }
  const std::vector<std::int64_t> layers = split_list(experiment);
  const std::int64_t ranks = experiment.get_int(kStages);
  if (layers.empty() || static_cast<std::int64_t>(layers.size()) % ranks != 0) return std::nullopt;
  return layout_of_split_list(layers, ranks, is_v_shaped(experiment) ? SplitOrder::kByStage : SplitOrder::kByRank,
                              num_mtp_layers(experiment));
}

// The older runtime has switches of its own for them.
bool is_v_shaped(const Experiment& experiment) {
  if (experiment.get_bool("patch_zero_bubble")) {
    return experiment.get_bool("zero_bubble_v_schedule") || experiment.get_bool("enable_1f1b_v");
  }
  const std::string name = experiment.get_string("pp_algorithm");
  return experiment.get_bool("patch_primus_pipeline") &&
         (name == "zbv-formatted" || name == "v-half" || name == "v-min");
}

std::int64_t virtual_pipeline_size(const Experiment& experiment) {
  const std::int64_t ranks = experiment.get_int(kStages);
  if (ranks == 1) return 1;
  if (const auto layout = written_layout(experiment)) return std::max<std::int64_t>(layout->num_stages() / ranks, 1);
  const std::vector<Spelling> spellings = spellings_of(experiment);
  return spellings.empty() ? 1 : spellings.front().chunks;
}

std::span<const Rule> pipeline_rules() {
  return kRules;
}

}  // namespace primus::config
