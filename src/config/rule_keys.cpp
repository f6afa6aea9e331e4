#include "config/rule_keys.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace primus::config {
namespace {

struct Row {
  std::string_view rule;
  std::string_view keys;
};

// clang-format off
// Written by tools/rule_keys from the rules' sources.
constexpr Row kRows[] = {
    {"activation", "openai_gelu quick_geglu squared_relu swiglu"},
    {"assignment", "moe_aux_loss_coeff moe_router_enable_expert_bias moe_router_load_balancing_type moe_router_num_groups num_experts"},
    {"asynchronous_save", "async_save ckpt_format use_persistent_ckpt_worker"},
    {"attention_heads", "hidden_size kv_channels max_position_embeddings multi_latent_attention num_attention_heads seq_length"},
    {"average_in_collective", "calculate_per_token_loss ddp_average_in_collective"},
    {"balancing", "moe_aux_loss_coeff moe_router_load_balancing_type num_experts"},
    {"batch", "context_parallel_size decrease_batch_size_if_needed expert_model_parallel_size expert_tensor_parallel_size global_batch_size micro_batch_size microbatch_group_size_per_vp_stage num_experts pipeline_model_parallel_size tensor_model_parallel_size"},
    {"batch_rampup", "context_parallel_size decrease_batch_size_if_needed expert_model_parallel_size expert_tensor_parallel_size global_batch_size micro_batch_size microbatch_group_size_per_vp_stage num_experts pipeline_model_parallel_size rampup_batch_size tensor_model_parallel_size"},
    {"bf16_end_layers", "first_last_layers_bf16 num_layers num_layers_at_end_in_bf16 num_layers_at_start_in_bf16"},
    {"capacity", "moe_aux_loss_coeff moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_router_load_balancing_type moe_router_topk num_experts"},
    {"choices_on_stages", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers decoder_pipeline_manual_split_list dsa_indexer_skip_topk_offset dsa_indexer_topk_freq enable_1f1b_v experimental_attention_variant mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"chunks_on_a_rank", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"context_communication", "context_parallel_size cp_comm_type num_attention_heads num_layers tensor_model_parallel_size"},
    {"context_hierarchy", "context_parallel_size cp_comm_type hierarchical_context_parallel_sizes"},
    {"data_files", "data_path test_data_path train_data_path valid_data_path"},
    {"data_lists", "data_args_path data_path merge_file mock_data per_split_data_args_path special_tokens test_data_path tiktoken_special_tokens tokenizer_model tokenizer_type train_data_path valid_data_path vocab_file vocab_size"},
    {"data_loader", "dataloader_type"},
    {"data_sources", "data_args_path data_path merge_file mock_data per_split_data_args_path special_tokens test_data_path tiktoken_special_tokens tokenizer_model tokenizer_type train_data_path valid_data_path vocab_file vocab_size"},
    {"data_split", "split"},
    {"deepep", "moe_enable_deepep moe_router_dtype moe_shared_expert_overlap moe_token_dispatcher_type use_turbo_deepep"},
    {"deepep_compute_units", "expert_model_parallel_size turbo_deepep_num_cu use_turbo_deepep"},
    {"delayed_weight_gradients", "delay_wgrad_compute overlap_moe_expert_parallel_comm"},
    {"deterministic", "cross_entropy_loss_fusion deterministic_mode moe_router_fusion tp_comm_overlap"},
    {"deterministic_environment", "deterministic_mode"},
    {"dumps", "save save_activations_interval save_dgrads_interval save_params_interval save_tokens_per_expert_interval save_wgrads_interval"},
    {"encoder_seq_length", "encoder_seq_length seq_length"},
    {"evaluation_batch", "eval_global_batch_size eval_micro_batch_size global_batch_size micro_batch_size"},
    {"evaluation_data", "data_args_path data_path eval_iters merge_file mock_data per_split_data_args_path special_tokens split test_data_path tiktoken_special_tokens tokenizer_model tokenizer_type train_data_path valid_data_path vocab_file vocab_size"},
    {"even_chunks", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"even_stages", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"expert_bias", "moe_router_enable_expert_bias moe_router_score_function num_experts"},
    {"expert_groups", "moe_router_group_topk moe_router_num_groups moe_router_topk num_experts"},
    {"expert_overlap", "bf16 expert_model_parallel_size fp16 moe_shared_expert_overlap moe_token_dispatcher_type mtp_num_layers overlap_moe_expert_parallel_comm patch_primus_pipeline pipeline_model_parallel_size recompute_granularity recompute_method recompute_modules recompute_num_layers"},
    {"expert_overlap_queues", "overlap_moe_expert_parallel_comm"},
    {"experts_divide", "expert_model_parallel_size num_experts"},
    {"final_decay", "lr_decay_iters lr_decay_samples lr_decay_style lr_wsd_decay_iters lr_wsd_decay_samples train_iters train_samples"},
    {"flattened_unit", "activation_func_clamp_value activation_situ_beta glu_linear_offset swiglu swiglu_limit"},
    {"fp4_layers", "fp4 fp4_use_native_te_autocast transformer_impl use_turbo_gemm"},
    {"fully_sharded", "fp16 gradient_accumulation_fusion overlap_param_gather pipeline_model_parallel_size use_custom_fsdp use_distributed_optimizer use_fsdp2_bf16_master_weight_optimizer use_fsdp2_fp32_param_optimizer use_megatron_fsdp use_torch_fsdp2"},
    {"gated_unit", "activation_func_clamp_value glu_linear_offset moe_mlp_glu_interleave_size moe_shared_expert_glu_interleave_size quick_geglu swiglu"},
    {"glu_interleave", "ffn_hidden_size moe_ffn_hidden_size moe_mlp_glu_interleave_size moe_shared_expert_glu_interleave_size moe_shared_expert_intermediate_size"},
    {"grouped_gemm", "moe_use_legacy_grouped_gemm turbo_sync_free_moe_stage use_turbo_grouped_gemm"},
    {"growing_batch", "rampup_batch_size step_batch_size_schedule train_samples"},
    {"head_learning_rate", "decoupled_lr decoupled_min_lr"},
    {"inherited_expert_parallel", "context_parallel_size expert_model_parallel_size expert_tensor_parallel_size num_experts pipeline_model_parallel_size tensor_model_parallel_size"},
    {"injected_errors", "error_injection_rate rerun_mode"},
    {"inter_document_masking", "dataloader_inter_document_masking reset_attention_mask reset_position_ids"},
    {"interleaving", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_pipeline_manual_split_list enable_1f1b_v global_batch_size micro_batch_size microbatch_group_size_per_vp_stage mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"interleaving_ranks", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank overlap_p2p_comm patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"latent_attention", "add_qkv_bias attention_output_gate multi_latent_attention qk_l2_norm qk_pos_emb_head_dim rotary_percent"},
    {"layer_kinds", "experimental_attention_variant lfm_layer_types num_layers"},
    {"layer_pattern", "moe_layer_freq num_experts num_layers"},
    {"layer_patterns", "experimental_attention_variant linear_attention_freq no_rope_freq num_layers window_attn_skip_freq window_size"},
    {"layout_layers", "mtp_num_layers num_layers pipeline_model_parallel_layout"},
    {"layout_stages", "decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm zero_bubble_v_schedule"},
    {"layout_text", "pipeline_model_parallel_layout"},
    {"learning_rate", "lr lr_warmup_init min_lr"},
    {"linear_attention", "experimental_attention_variant linear_attention_freq linear_num_key_heads linear_num_value_heads"},
    {"logit_type", "bf16 logit_dtype"},
    {"loss_scale_range", "fp16 initial_loss_scale loss_scale min_loss_scale"},
    {"low_precision_parameters", "fp4 fp4_param fp8 fp8_param_gather"},
    {"low_precision_recipes", "fp4 fp4_recipe fp8 fp8_recipe use_turbo_gemm"},
    {"manual_split", "decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm zero_bubble_v_schedule"},
    {"mega_moe", "add_bias_linear bf16 expert_model_parallel_size init_model_with_meta_device moe_expert_capacity_factor moe_router_load_balancing_type swiglu tensor_model_parallel_size use_turbo_mega_moe"},
    {"mixed_hidden_states", "mtp_hsm mtp_num_layers"},
    {"mock_data", "data_args_path data_path merge_file mock_data per_split_data_args_path special_tokens test_data_path tiktoken_special_tokens tokenizer_model tokenizer_type train_data_path valid_data_path vocab_file vocab_size"},
    {"muon_steps", "muon_coefficient_type muon_num_ns_steps optimizer"},
    {"mxfp8_environment", "fp8 fp8_recipe"},
    {"no_encoder", "encoder_num_layers encoder_pipeline_model_parallel_size encoder_tensor_model_parallel_size pipeline_model_parallel_split_rank"},
    {"nothing_saved", "async_save no_save_optim no_save_rng save save_interval save_keep_last save_retain_interval"},
    {"null_tokenizer", "merge_file null_tokenizer_eod_id special_tokens tiktoken_special_tokens tokenizer_model tokenizer_type vocab_file vocab_size"},
    {"number_types", "bf16 fp16 fp4 fp8"},
    {"one_way_of_cutting", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers decoder_pipeline_manual_split_list pipeline_model_parallel_layout"},
    {"optimizer_instances", "num_distributed_optimizer_instances use_distributed_optimizer"},
    {"optimizer_types", "bf16 exp_avg_dtype exp_avg_sq_dtype fp16 main_grads_dtype main_params_dtype use_distributed_optimizer use_precision_aware_optimizer"},
    {"padded_vocabulary", "merge_file pad_vocab_size padded_vocab_size special_tokens tensor_model_parallel_size tiktoken_special_tokens tokenizer_model tokenizer_type vocab_file vocab_size"},
    {"parameter_gather", "overlap_grad_reduce overlap_param_gather use_distributed_optimizer"},
    {"parameters", "context_parallel_size decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers expert_model_parallel_size expert_tensor_parallel_size ffn_hidden_size hidden_size kv_channels kv_lora_rank make_vocab_size_divisible_by microbatch_group_size_per_vp_stage moe_ffn_hidden_size moe_shared_expert_intermediate_size mtp_num_layers num_attention_heads num_experts num_layers num_layers_per_virtual_pipeline_stage num_query_groups num_virtual_stages_per_pipeline_rank pipeline_model_parallel_size q_lora_rank qk_head_dim qk_pos_emb_head_dim seq_length tensor_model_parallel_size train_samples v_head_dim virtual_pipeline_model_parallel_size vocab_size"},
    {"pipeline_dump", "dump_pp_data pipeline_model_parallel_size"},
    {"position_scaling", "multi_latent_attention position_embedding_type rope_type rotary_seq_len_interpolation_factor use_rope_scaling"},
    {"positions", "max_position_embeddings seq_length"},
    {"prediction_depths", "decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm zero_bubble_v_schedule"},
    {"probabilities_on_input", "moe_apply_probs_on_input moe_router_topk num_experts"},
    {"processes", "context_parallel_size decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers expert_model_parallel_size expert_tensor_parallel_size ffn_hidden_size hidden_size kv_channels kv_lora_rank make_vocab_size_divisible_by microbatch_group_size_per_vp_stage moe_ffn_hidden_size moe_shared_expert_intermediate_size mtp_num_layers num_attention_heads num_experts num_layers num_layers_per_virtual_pipeline_stage num_query_groups num_virtual_stages_per_pipeline_rank pipeline_model_parallel_size q_lora_rank qk_head_dim qk_pos_emb_head_dim seq_length tensor_model_parallel_size train_samples v_head_dim virtual_pipeline_model_parallel_size vocab_size"},
    {"profile_folder", "disable_tensorboard profile"},
    {"profile_ranks", "profile profile_ranks"},
    {"profile_steps", "profile profile_step_end profile_step_start train_iters"},
    {"quantile_rule", "moe_router_bias_update_rule moe_router_enable_expert_bias moe_router_topk num_experts quantile_balancing_margin_max quantile_balancing_margin_min"},
    {"query_groups", "group_query_attention multi_latent_attention num_attention_heads num_query_groups"},
    {"query_key_norms", "qk_l2_norm qk_layernorm"},
    {"rank_order", "context_parallel_size expert_model_parallel_size expert_tensor_parallel_size num_experts pipeline_model_parallel_size tensor_model_parallel_size use_tp_pp_dp_mapping"},
    {"recompute_full", "num_layers recompute_granularity recompute_layer_ids recompute_method recompute_num_layers"},
    {"recompute_layers", "mtp_num_layers num_layers recompute_layer_ids"},
    {"recompute_layers_alone", "recompute_granularity recompute_layer_ids recompute_method recompute_num_layers"},
    {"recompute_modules", "multi_latent_attention num_experts recompute_modules"},
    {"recompute_selective", "recompute_granularity recompute_method recompute_num_layers"},
    {"recompute_shorthand", "recompute_activations recompute_granularity"},
    {"relative_positions", "max_position_embeddings position_embedding_type seq_length"},
    {"replicated_shards", "ckpt_format data_parallel_replicate_degree use_torch_fsdp2"},
    {"residual_type", "bf16 fp16 fp32_residual_connection"},
    {"run_length", "train_iters train_samples"},
    {"saved_activations", "distribute_saved_activations recompute_granularity sequence_parallel tensor_model_parallel_size"},
    {"schedule", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"schedule_units", "lr_warmup_iters lr_warmup_samples train_iters train_samples"},
    {"sequence_divides", "context_parallel_size num_experts seq_length sequence_parallel tensor_model_parallel_size"},
    {"sequence_parallel", "num_experts sequence_parallel tensor_model_parallel_size"},
    {"sharded_format", "ckpt_format use_torch_fsdp2"},
    {"shared_choices", "dsa_indexer_skip_topk_offset dsa_indexer_topk_freq experimental_attention_variant"},
    {"shared_overlap", "moe_shared_expert_intermediate_size moe_shared_expert_overlap num_experts"},
    {"single_expert", "moe_router_pre_softmax moe_router_score_function moe_router_topk num_experts"},
    {"single_stage", "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"sink_kinds", "attn_sink model_type use_sink_attention"},
    {"sinks", "context_parallel_size use_sink_attention"},
    {"sizes", "context_parallel_size decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers expert_model_parallel_size expert_tensor_parallel_size ffn_hidden_size hidden_size kv_channels kv_lora_rank make_vocab_size_divisible_by microbatch_group_size_per_vp_stage moe_ffn_hidden_size moe_shared_expert_intermediate_size mtp_num_layers num_attention_heads num_experts num_layers num_layers_per_virtual_pipeline_stage num_query_groups num_virtual_stages_per_pipeline_rank pipeline_model_parallel_size q_lora_rank qk_head_dim qk_pos_emb_head_dim seq_length tensor_model_parallel_size train_samples v_head_dim virtual_pipeline_model_parallel_size vocab_size"},
    {"softmax_logits", "softmax_type use_sink_attention"},
    {"sparse_attention", "dsa_indexer_head_dim dsa_indexer_n_heads dsa_indexer_rotate_activation dsa_indexer_topk experimental_attention_variant multi_latent_attention qk_pos_emb_head_dim"},
    {"swiglu_limit", "activation_func_clamp_value swiglu swiglu_limit"},
    {"sync_free_stage", "enable_primus_turbo fp4 fp8 moe_permute_fusion moe_router_padding_for_quantization moe_use_fused_router_with_aux_score moe_use_legacy_grouped_gemm turbo_sync_free_moe_stage use_turbo_deepep use_turbo_fused_act_with_probs use_turbo_grouped_gemm"},
    {"temporary_checkpoints", "non_persistent_ckpt_type non_persistent_save_interval"},
    {"tensor_divides", "expert_tensor_parallel_size ffn_hidden_size group_query_attention hidden_size moe_ffn_hidden_size moe_shared_expert_intermediate_size multi_latent_attention num_attention_heads num_experts num_query_groups tensor_model_parallel_size"},
    {"tensor_overlap", "sequence_parallel tensor_model_parallel_size tp_comm_overlap"},
    {"top_k", "moe_router_topk num_experts"},
    {"turbo_attention", "sink_sliding_window use_sink_attention use_turbo_attention window_size"},
    {"turbo_linear", "tensor_model_parallel_size use_turbo_gemm use_turbo_norm_te_linear"},
    {"turbo_master_switch", "enable_primus_turbo use_turbo_attention use_turbo_deepep use_turbo_gemm use_turbo_grouped_gemm use_turbo_mega_moe use_turbo_rms_norm"},
    {"unpadded_groups", "enable_primus_turbo moe_router_padding_for_quantization turbo_grouped_gemm_without_padding use_turbo_grouped_gemm"},
    {"upcycling", "load moe_use_upcycling num_experts pretrained_checkpoint"},
    {"vocabulary", "merge_file special_tokens tiktoken_special_tokens tokenizer_model tokenizer_type vocab_file vocab_size"},
    {"warmup", "lr_decay_iters lr_decay_samples lr_warmup_iters lr_warmup_samples train_iters train_samples"},
    {"warmup_fraction", "lr_warmup_fraction lr_warmup_iters lr_warmup_samples train_samples"},
    {"weight_decay", "end_weight_decay start_weight_decay weight_decay_incr_style"},
    {"window", "sink_sliding_window use_sink_attention window_size"},
    {"world_size", "context_parallel_size expert_model_parallel_size expert_tensor_parallel_size num_experts pipeline_model_parallel_size tensor_model_parallel_size"},
    {"zero_bubble", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split create_attention_mask_in_dataloader decoder_pipeline_manual_split_list enable_1f1b_v fp8 gradient_accumulation_fusion mtp_num_layers no_persist_layer_norm num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank overlap_grad_reduce overlap_param_gather patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
    {"zero_bubble_chunks", "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split decoder_pipeline_manual_split_list enable_1f1b_v mtp_num_layers num_layers num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank patch_primus_pipeline patch_zero_bubble pipeline_model_parallel_layout pipeline_model_parallel_size pp_algorithm virtual_pipeline_model_parallel_size zero_bubble_v_schedule"},
};
// clang-format on

}  // namespace

std::vector<std::string> keys_of_rule(std::string_view rule) {
  const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& one) { return one.rule == rule; });
  return row == std::end(kRows) || row->keys.empty() ? std::vector<std::string>() : split(row->keys, ' ');
}

bool is_rule_about(std::string_view rule, std::string_view key) {
  const std::vector<std::string> keys = keys_of_rule(rule);
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace primus::config
