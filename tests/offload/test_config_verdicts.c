/* tests/offload/test_config_verdicts.c - tables: verdicts and their reasons, batch triples, everything that is refused. */
#include "offload/config/config_options.h"
#include "offload/config/config_table.h"
#include "tests/offload/config_fixture.h"

#include <stdio.h>

struct verdict_row {
    const char *text;
    const char *path;
    enum st_config_verdict verdict;
    const char *reason; /* part of it; NULL: none at all */
};

TEST(verdicts)
{
#define Z(inner) "{\"zero_optimization\": {" inner "}}"
    static const struct verdict_row rows[] = {
        {"{\"fp16\": {\"enabled\": true}}", "fp16.enabled", ST_VERDICT_HONOURED, NULL},
        {"{\"fp16\": {\"enabled\": true}}", "bf16.enabled", ST_VERDICT_HONOURED, "fp16 is on"},
        {"{\"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}", "bf16.enabled", ST_VERDICT_REJECTED, "one of them"},
        {"{\"fp16\": {\"enabled\": true}, \"bf16\": {\"check_grad_overflow\": false}}", "bf16.check_grad_overflow",
         ST_VERDICT_NOTICE, "fp16 always"},
        {"{\"fp16\": {\"enabled\": false}}", "fp16.enabled", ST_VERDICT_HONOURED, NULL},
        {"{\"fp16\": {\"enabled\": \"auto\", \"loss_scale\": 0}}", "fp16.loss_scale", ST_VERDICT_NOTICE, "not train in fp16"},
        {"{\"fp16\": {\"enabled\": false, \"hysteresis\": 4}}", "fp16.hysteresis", ST_VERDICT_NOTICE, "not train in fp16"},
        {"{\"fp16\": {\"enabled\": false, \"hysteresis\": \"x\"}}", "fp16.hysteresis", ST_VERDICT_REJECTED, "number"},
        {"{\"scheduler\": {\"params\": {\"cos_min_ratio\": \"x\"}}}", "scheduler.params.cos_min_ratio", ST_VERDICT_REJECTED,
         "number"},
        {"{\"fp16\": {\"enabled\": true, \"loss_scale\": 8, \"hysteresis\": 4}}", "fp16.hysteresis", ST_VERDICT_HONOURED,
         "fixed"},
        {"{\"fp16\": {\"enabled\": true, \"hysteresis\": 4}}", "fp16.hysteresis", ST_VERDICT_HONOURED, NULL},
        {"{\"fp16\": {\"enabled\": true, \"auto_cast\": true}}", "fp16.auto_cast", ST_VERDICT_NOTICE, "token numbers"},
        {"{\"fp16\": {\"auto_cast\": false}}", "fp16.auto_cast", ST_VERDICT_HONOURED, NULL},
        {"{\"fp16\": {\"fp16_master_weights_and_grads\": true}}", "fp16.fp16_master_weights_and_grads", ST_VERDICT_REJECTED,
         "masters are fp32"},
        {"{\"fp16\": {\"fp16_master_weights_and_grads\": false}}", "fp16.fp16_master_weights_and_grads", ST_VERDICT_HONOURED,
         NULL},
        {"{\"torch_autocast\": {\"enabled\": true}}", "torch_autocast.enabled", ST_VERDICT_REJECTED, "bf16"},
        {"{\"optimizer\": {\"type\": \"Lamb\"}}", "optimizer.type", ST_VERDICT_REJECTED,
         "this version has AdamW, Adam, Adagrad, Lion and SGD"},
        {"{\"optimizer\": {\"params\": {\"max_coeff\": 0.3}, \"type\": \"Lamb\"}}", "optimizer.params.max_coeff",
         ST_VERDICT_NOTICE, "not evaluated: optimizer.type is rejected"},
        {"{\"optimizer\": {\"params\": {\"max_coeff\": 0.3}}}", "optimizer.params.max_coeff", ST_VERDICT_REJECTED, "unknown key"},
        {"{\"cuda_visible_devices\": \"0,1\"}", "cuda_visible_devices", ST_VERDICT_NOTICE, "machine.device cuda:N"},
        {"{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"torch_adam\": true}}}", "optimizer.params.torch_adam",
         ST_VERDICT_NOTICE, "one Adam"},
        {"{\"optimizer\": {\"params\": {\"max_grad_norm\": 1}}}", "optimizer.params.max_grad_norm", ST_VERDICT_REJECTED,
         "gradient_clipping"},
        {"{\"optimizer\": {\"params\": {\"amsgrad\": true}}}", "optimizer.params.amsgrad", ST_VERDICT_REJECTED, "AMSGrad"},
        {"{\"scheduler\": {\"type\": \"OneCycle\"}}", "scheduler.params.cycle_min_lr", ST_VERDICT_REJECTED, "OneCycle needs it"},
        {"{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0, \"cycle_max_lr\": 1}}}",
         "optimizer.params.betas", ST_VERDICT_HONOURED, "(momentum, 0.99)"},
        {"{\"scheduler\": {\"type\": \"WarmupCosineLR\"}}", "scheduler.type", ST_VERDICT_HONOURED, NULL},
        {"{\"scheduler\": {\"type\": \"LRRangeTest\"}}", "scheduler.params.lr_range_test_step_size", ST_VERDICT_HONOURED, NULL},
        {"{\"scheduler\": {\"params\": {\"cos_min_ratio\": 0.1}}}", "scheduler.params.cos_min_ratio", ST_VERDICT_NOTICE,
         "rate is constant"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"cos_min_ratio\": 0.1}}}", "scheduler.params.cos_min_ratio",
         ST_VERDICT_REJECTED, "WarmupCosineLR"},
        {"{\"bf16\": {\"bf16_optimizer_states\": true}}", "bf16.bf16_optimizer_states", ST_VERDICT_HONOURED, "exact fp32"},
        {"{\"bf16\": {\"bf16_master_weights_and_grads\": true}}", "bf16.bf16_master_weights_and_grads", ST_VERDICT_REJECTED,
         "exact fp32"},
        {"{\"bfloat16\": {\"enabled\": true}}", "bfloat16.enabled", ST_VERDICT_HONOURED, NULL},
        {"{\"data_types\": {\"grad_accum_dtype\": \"fp32\"}}", "data_types.grad_accum_dtype", ST_VERDICT_HONOURED, NULL},
        {"{\"data_types\": {\"grad_accum_dtype\": \"bf16\"}}", "data_types.grad_accum_dtype", ST_VERDICT_REJECTED, "fp32"},
        {"{\"gradient_allreduce_op\": \"mean\"}", "gradient_allreduce_op", ST_VERDICT_HONOURED, NULL},
        {"{\"gradient_allreduce_op\": \"sum\"}", "gradient_allreduce_op", ST_VERDICT_NOTICE, "nothing to combine"},
        {"{\"dataloader_drop_last\": true}", "dataloader_drop_last", ST_VERDICT_NOTICE, "whole batches"},
        {"{\"wall_clock_breakdown\": true}", "wall_clock_breakdown", ST_VERDICT_NOTICE, "metrics show"},
        {Z("\"reduce_bucket_size\": 5e8"), "zero_optimization.reduce_bucket_size", ST_VERDICT_NOTICE, "buckets"},
        {Z("\"reduce_bucket_size\": \"auto\""), "zero_optimization.reduce_bucket_size", ST_VERDICT_NOTICE, "hidden^2"},
        {Z("\"stage3_prefetch_bucket_size\": \"auto\""), "zero_optimization.stage3_prefetch_bucket_size", ST_VERDICT_NOTICE,
         "0.9 hidden^2"},
        {Z("\"param_persistence_threshold\": 0"), "zero_optimization.param_persistence_threshold", ST_VERDICT_NOTICE,
         "else in slices"},
        {Z("\"stage3_gather_fp16_weights_on_model_save\": true"), "zero_optimization.stage3_gather_fp16_weights_on_model_save",
         ST_VERDICT_NOTICE, "Hugging Face"},
        {Z("\"model_persistence_threshold\": 9223372036854775807"), "zero_optimization.model_persistence_threshold",
         ST_VERDICT_NOTICE, "plan"},
        {Z("\"legacy_stage1\": true"), "zero_optimization.legacy_stage1", ST_VERDICT_REJECTED, "false"},
        {Z("\"zenflow\": {\"topk_ratio\": 0.1}"), "zero_optimization.zenflow", ST_VERDICT_REJECTED, "remove the section"},
        {Z("\"zenflow\": {\"topk_ratio\": 0.1}"), "zero_optimization.zenflow.topk_ratio", ST_VERDICT_NOTICE, "not evaluated"},
        {Z("\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}"), "zero_optimization.offload_param.device",
         ST_VERDICT_HONOURED, NULL},
        {Z("\"stage\": 2, \"offload_param\": {\"device\": \"cpu\"}"), "zero_optimization.offload_param.device",
         ST_VERDICT_HONOURED, "below stage 3"},
        {Z("\"stage\": 2, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/x\"}"),
         "zero_optimization.offload_optimizer.device", ST_VERDICT_HONOURED, "treats it as cpu"},
        {Z("\"offload_optimizer\": {\"device\": \"cpu\"}"), "zero_optimization.offload_optimizer.device", ST_VERDICT_HONOURED,
         "stage 0"},
        {Z("\"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": \"/x\"}"),
         "zero_optimization.offload_optimizer.nvme_path", ST_VERDICT_HONOURED, "not used"},
        {Z("\"offload_optimizer\": {\"ratio\": 1}"), "zero_optimization.offload_optimizer.ratio", ST_VERDICT_HONOURED, NULL},
        {Z("\"offload_optimizer\": {\"ratio\": 0.5}"), "zero_optimization.offload_optimizer.ratio", ST_VERDICT_HONOURED, NULL},
        {Z("\"cpu_offload\": true"), "zero_optimization.cpu_offload", ST_VERDICT_HONOURED, "deprecated"},
        {"{\"aio\": {\"thread_count\": 1}}", "aio.thread_count", ST_VERDICT_NOTICE, "old name"},
        {"{\"aio\": {\"block_size\": 5000}}", "aio.block_size", ST_VERDICT_HONOURED, "asked for 5000, and 4096 is used"},
        {"{\"aio\": {\"use_gds\": true}}", "aio.use_gds", ST_VERDICT_NOTICE, "GPUDirect"},
        {"{\"comet\": {\"api_key\": \"k\"}}", "comet.api_key", ST_VERDICT_NOTICE, "train.metrics"},
        {"{\"_comment\": \"ours\"}", "_comment", ST_VERDICT_NOTICE, "a comment"},
        {"{\"//\": {\"a\": [1]}}", "//", ST_VERDICT_NOTICE, "a comment"},
        {"{\"low_cpu_mem_usage\": false}", "low_cpu_mem_usage", ST_VERDICT_NOTICE, "trainer"},
        {"{\"monitor_config\": {\"csv_monitor\": {\"enabled\": false}}}", "monitor_config.csv_monitor", ST_VERDICT_NOTICE,
         "no key of DeepSpeed's"},
        {"{\"strata\": {\"accumulation\": \"vertical\"}}", "strata.accumulation", ST_VERDICT_HONOURED, NULL},
        {"{\"strata\": {\"accumulation\": \"horizontal\"}}", "strata.accumulation", ST_VERDICT_HONOURED, NULL},
        {"{\"strata\": {\"update\": \"speculative\"}}", "strata.update", ST_VERDICT_HONOURED, NULL},
        {Z("\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}}, \"strata\": {\"update\": \"speculative\""),
         "strata.update", ST_VERDICT_REJECTED, "offload_optimizer.ratio"},
        {"{\"strata\": {\"update\": \"in_backward\"}}", "strata.update", ST_VERDICT_REJECTED, "gradient_clipping 1 needs"},
        {"{\"strata\": {\"update\": \"in_backward\"}, \"gradient_clipping\": 0}", "strata.update", ST_VERDICT_HONOURED,
         "exit code 5"},
        {"{\"strata\": {\"update\": \"in_backward\"}, \"gradient_clipping\": 0, \"bf16\": {\"check_grad_overflow\": false}}",
         "strata.update", ST_VERDICT_HONOURED, NULL},
        {"{\"strata\": {\"update\": \"in_backward\"}, \"gradient_clipping\": 0, \"fp16\": {\"enabled\": true}}", "strata.update",
         ST_VERDICT_REJECTED, "loss scaling"},
        {"{\"strata\": {\"activation_tier\": \"nvme\"}}", "strata.activation_tier", ST_VERDICT_REJECTED, "no directory"},
        {"{\"strata\": {\"activation_tier\": \"nvme\", \"nvme\": \"/x\"}}", "strata.activation_tier", ST_VERDICT_HONOURED, NULL},
        {"{\"strata\": {\"freeze\": [\"transformer.wte.*\"]}}", "strata.freeze", ST_VERDICT_HONOURED, NULL},
        {"{\"strata\": {\"lora\": {\"r\": 8}}}", "strata.lora", ST_VERDICT_HONOURED, NULL},
        {"{\"strata\": {\"lora\": {}, \"freeze\": \"*.bias\"}}", "strata.freeze", ST_VERDICT_REJECTED, "frozen already"},
        {"{\"strata\": {\"quantization\": \"nf4-double\"}}", "strata.quantization", ST_VERDICT_HONOURED, NULL},
        {"{\"strata\": {\"quantization\": \"fp4\"}}", "strata.quantization", ST_VERDICT_REJECTED, "nf4-double"},
        {"{\"strata\": {\"chunk_size\": 40000}}", "strata.chunk_size", ST_VERDICT_HONOURED, "rounded down"},
        {"{\"strata\": {\"keep\": 2}}", "strata.keep", ST_VERDICT_HONOURED, "names no directory"},
        {"{\"strata\": {\"save_every\": 9}}", "strata.save_every", ST_VERDICT_HONOURED, "names no directory"},
        /* features that are not here: named, off and empty pass */
        {"{\"autotuning\": {\"enabled\": true}}", "autotuning.enabled", ST_VERDICT_NOTICE, "strata plan"},
        {"{\"data_efficiency\": {\"enabled\": false, \"data_sampling\": {\"enabled\": false}}}", "data_efficiency.enabled",
         ST_VERDICT_NOTICE, "curricula"},
        {"{\"data_efficiency\": {\"enabled\": true, \"data_sampling\": {\"enabled\": false}}}", "data_efficiency",
         ST_VERDICT_REJECTED, "set enabled to false"},
        {"{\"tensor_parallel\": {\"autotp_size\": 4}}", "tensor_parallel.autotp_size", ST_VERDICT_REJECTED,
         "4 ranks would train the same samples"},
        {"{\"tensor_parallel\": {\"autotp_size\": 1, \"tp\": {\"tp_size\": 1}}}", "tensor_parallel.tp", ST_VERDICT_NOTICE,
         "what ranks exchange"},
        {"{\"tensor_parallel\": {\"autotp_size\": 1}}", "tensor_parallel.autotp_size", ST_VERDICT_NOTICE, "below 2"},
        {"{\"sequence_parallel_size\": 2}", "sequence_parallel_size", ST_VERDICT_REJECTED, "2 times as many"},
        {"{\"sequence_parallel_size\": 1}", "sequence_parallel_size", ST_VERDICT_NOTICE, "below 2"},
        {"{\"data_types\": {\"param_dtype\": \"bfloat16\"}}", "data_types.param_dtype", ST_VERDICT_NOTICE, "decide"},
        {"{\"data_types\": {\"grad_accum_dtype\": \"float32\"}}", "data_types.grad_accum_dtype", ST_VERDICT_HONOURED, NULL},
        {"{\"data_types\": {\"grad_accum_dtype\": \"bfloat16\"}}", "data_types.grad_accum_dtype", ST_VERDICT_REJECTED,
         "accumulate in fp32"},
        {"{\"pipeline\": {\"stages\": 2}}", "pipeline.stages", ST_VERDICT_NOTICE, "what ranks exchange"},
        {"{\"use_data_before_expert_parallelism\": true}", "use_data_before_expert_parallelism", ST_VERDICT_NOTICE, "share them"},
        {"{\"data_types\": {\"keep_in_fp32_modules\": []}}", "data_types.keep_in_fp32_modules", ST_VERDICT_HONOURED, NULL},
        {"{\"data_types\": {\"keep_in_fp32_modules\": [\"norm\"]}}", "data_types.keep_in_fp32_modules", ST_VERDICT_REJECTED,
         "one dtype"},
        /* removed from DeepSpeed: off and empty pass, on is refused */
        {"{\"amp\": {\"enabled\": false, \"opt_level\": \"O1\"}}", "amp.enabled", ST_VERDICT_NOTICE, "removed in DeepSpeed 0.19"},
        {"{\"amp\": {\"enabled\": true}}", "amp", ST_VERDICT_REJECTED, "use bf16"},
        {"{\"amp\": {\"enabled\": \"auto\", \"opt_level\": \"auto\"}}", "amp.enabled", ST_VERDICT_NOTICE, "removed in DeepSpeed"},
        {"{\"amp\": {\"enabled\": \"auto\", \"more\": {\"enabled\": true}}}", "amp", ST_VERDICT_REJECTED, "removed"},
        {"{\"amp\": {\"opt_level\": \"O1\"}}", "amp", ST_VERDICT_REJECTED, "removed"},
        {"{\"elasticity\": {\"enabled\": true}}", "elasticity", ST_VERDICT_REJECTED, "batch sizes"},
        {"{\"elasticity\": {\"enabled\": false, \"min_gpus\": 1}}", "elasticity.min_gpus", ST_VERDICT_NOTICE, "batch sizes"},
        {"{\"curriculum_learning\": {\"enabled\": false}}", "curriculum_learning.enabled", ST_VERDICT_NOTICE, "removed"},
        {"{\"curriculum_learning\": {\"enabled\": true}}", "curriculum_learning", ST_VERDICT_REJECTED, "order you want"},
        {"{\"progressive_layer_drop\": {}}", "progressive_layer_drop", ST_VERDICT_NOTICE, "removed"},
        {"{\"progressive_layer_drop\": {\"enabled\": true, \"theta\": 0.5}}", "progressive_layer_drop", ST_VERDICT_REJECTED,
         "every layer"},
        {"{\"eigenvalue\": {\"enabled\": true}}", "eigenvalue", ST_VERDICT_REJECTED, "eigenvalues"},
        {"{\"sparse_attention\": {\"mode\": \"fixed\"}}", "sparse_attention", ST_VERDICT_REJECTED, "dense"},
        {"{\"compression_training\": {\"layer_reduction\": {\"enabled\": false}}}", "compression_training.layer_reduction",
         ST_VERDICT_NOTICE, "removed"},
        {"{\"compression_training\": {\"a\": {\"enabled\": false, \"b\": {\"enabled\": true}}}}", "compression_training",
         ST_VERDICT_REJECTED, "another tool"},
        {"{\"graph_harvesting\": false}", "graph_harvesting", ST_VERDICT_NOTICE, "removed"},
        {"{\"graph_harvesting\": true}", "graph_harvesting", ST_VERDICT_REJECTED, "remove it"},
        {"{\"sparse_gradients\": true}", "sparse_gradients", ST_VERDICT_REJECTED, "removed"},
        {"{\"seq_parallel_comm_data_type\": \"bf16\"}", "seq_parallel_comm_data_type", ST_VERDICT_NOTICE, "the old name"},
        {"{\"zero_optimization\": {\"mics_shard_size\": -1}}", "zero_optimization.mics_shard_size", ST_VERDICT_NOTICE, "removed"},
        {"{\"zero_optimization\": {\"mics_shard_size\": 8}}", "zero_optimization.mics_shard_size", ST_VERDICT_REJECTED,
         "remove it"},
    };
#undef Z

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        struct st_config config;
        const strata_status st = config_load(&config, &source, rows[i].text, NULL);
        const struct st_config_row *row = find_row(source, rows[i].path);

        if (row == NULL || row->verdict != rows[i].verdict)
            fail_msg("%s: verdict %d", rows[i].text, row != NULL ? (int)row->verdict : -1);
        if (rows[i].reason == NULL)
            assert_null(row->reason);
        else if (row->reason == NULL || strstr(row->reason, rows[i].reason) == NULL)
            fail_msg("%s: reason %s", rows[i].text, row->reason);
        if (row->verdict == ST_VERDICT_REJECTED)
            assert_int_equal(st, STRATA_E_CONFIG);
        st_config_source_free(source);
    }
}

/* A section that is not here is off where all its switches are, however deep, and where it is empty. */
TEST(sections_that_are_off_are_accepted)
{
#define GONE(members) "{\"train_batch_size\": 1, \"compression_training\": " members "}"
    static const struct {
        const char *text;
        bool off;
    } rows[] = {
        {GONE("{}"), true},
        {GONE("{\"pruning\": {\"shared\": {\"enabled\": false, \"steps\": 9}}}"), true},
        {GONE("{\"a\": {\"enabled\": false}, \"b\": {\"c\": {\"enabled\": false}}}"), true},
        {GONE("{\"a\": {\"enabled\": false}, \"b\": {\"c\": {\"enabled\": true}}}"), false},
        {GONE("{\"a\": {\"enabled\": true}, \"b\": {\"c\": {\"enabled\": false}}}"), false},
        {GONE("{\"enabled\": true}"), false},
        {GONE("{\"pruning\": {\"steps\": 9}}"), false},
        {"{\"data_types\": {\"keep_in_fp32_modules\": []}}", true},
        {"{\"data_types\": {\"keep_in_fp32_modules\": [\"norm\"]}}", false},
    };
#undef GONE

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        struct st_config config;
        const strata_status st = config_load(&config, &source, rows[i].text, NULL);

        if (st != (rows[i].off ? STRATA_OK : STRATA_E_CONFIG))
            fail_msg("%s: status %d", rows[i].text, (int)st);
        st_config_source_free(source);
    }
}

struct batch_row {
    int64_t train, micro, accum;                 /* -1: left out; 0: "auto" */
    uint32_t want_train, want_micro, want_accum; /* 0: refused */
    const char *problem;
};

static void put_count(char *text, size_t bytes, const char *key, int64_t value)
{
    const size_t used = strlen(text);
    const char *comma = text[used - 1] == '{' ? "" : ", ";

    if (value == 0)
        snprintf(text + used, bytes - used, "%s\"%s\": \"auto\"", comma, key);
    else if (value > 0)
        snprintf(text + used, bytes - used, "%s\"%s\": %lld", comma, key, (long long)value);
}

TEST(batch_triples)
{
    static const struct batch_row rows[] = {
        {32, 16, 2, 32, 16, 2, NULL},
        {32, 16, 1, 0, 0, 0, "train_batch_size 32 is not train_micro_batch_size_per_gpu 16 x gradient_accumulation_steps 1 "},
        {32, 8, 2, 0, 0, 0, "32 is not train_micro_batch_size_per_gpu 8 x gradient_accumulation_steps 2 "},
        {32, 32, 1, 32, 32, 1, NULL},
        {32, 16, -1, 32, 16, 2, NULL},
        {33, 17, -1, 0, 0, 0, "33 is not train_micro_batch_size_per_gpu 17 x gradient_accumulation_steps 1 (derived)"},
        {33, 17, 2, 0, 0, 0, "train_batch_size 33 is not"},
        {4, 8, -1, 0, 0, 0, "gradient_accumulation_steps 0 (derived)"},
        {32, -1, 4, 32, 8, 4, NULL},
        {3, -1, 4, 0, 0, 0, "train_micro_batch_size_per_gpu 0 (derived)"},
        {33, -1, 4, 0, 0, 0, "33 is not"},
        {-1, 8, 4, 32, 8, 4, NULL},
        {32, -1, -1, 32, 32, 1, NULL},
        {-1, 8, -1, 8, 8, 1, NULL},
        {-1, -1, 4, 0, 0, 0, "gradient_accumulation_steps 4 alone"},
        {-1, -1, -1, 1, 1, 1, NULL},
        {0, 0, 0, 1, 1, 1, NULL},
        {0, 8, 0, 8, 8, 1, NULL},
        {0, 0, 4, 4, 1, 4, NULL},
        {-1, 0, 4, 4, 1, 4, NULL},
        {32, 0, 0, 32, 32, 1, NULL},
        {0, 524288, 16384, 0, 0, 0, "too large"},
        {4294967295, 4294967295, 1, 4294967295, 4294967295, 1, NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[256] = "{";

        put_count(text, sizeof(text), "train_batch_size", rows[i].train);
        put_count(text, sizeof(text), "train_micro_batch_size_per_gpu", rows[i].micro);
        put_count(text, sizeof(text), "gradient_accumulation_steps", rows[i].accum);
        strcat(text, "}");
        if (rows[i].want_train == 0) {
            load_bad(text, NULL, rows[i].problem);
        } else {
            const struct st_config c = load_good(text, NULL);

            assert_int_equal(c.train_batch, rows[i].want_train);
            assert_int_equal(c.micro_batch, rows[i].want_micro);
            assert_int_equal(c.grad_accum, rows[i].want_accum);
        }
    }
    assert_int_equal(load_good("{}", "gradient_accumulation_steps=4").train_batch, 4);
    load_bad("{\"train_batch_size\": 0}", NULL, "0 is out of range");
}

/* reference: DeepSpeed's unit/runtime/test_ds_config_dict.py, whose world is 2. */
TEST(batch_triples_of_ranks)
{
    static const struct {
        uint32_t ranks;
        struct batch_row row;
    } rows[] = {
        {2, {32, 16, 1, 32, 16, 1, NULL}},
        {2, {32, 8, 2, 32, 8, 2, NULL}},
        {2, {33, 17, 2, 0, 0, 0, "33 is not train_micro_batch_size_per_gpu 17 x gradient_accumulation_steps 2 x 2 ranks: "}},
        {2, {32, 18, 1, 0, 0, 0, "32 is not train_micro_batch_size_per_gpu 18 x gradient_accumulation_steps 1 x 2 ranks: "}},
        {2, {32, 16, 2, 0, 0, 0, "x 2 ranks"}},
        {4, {32, 2, -1, 32, 2, 4, NULL}},
        {4, {32, -1, 2, 32, 4, 2, NULL}},
        {4, {32, -1, -1, 32, 8, 1, NULL}},
        {4, {-1, 8, -1, 32, 8, 1, NULL}},
        {4, {-1, 8, 2, 64, 8, 2, NULL}},
        {4, {-1, -1, -1, 4, 1, 1, NULL}},
        {4,
         {30, 2, -1, 0, 0, 0, "30 is not train_micro_batch_size_per_gpu 2 x gradient_accumulation_steps 3 (derived) x 4 ranks"}},
        {4, {2, -1, -1, 0, 0, 0, "train_micro_batch_size_per_gpu 0 (derived)"}},
        {1024, {0, 4194304, 1, 0, 0, 0, "too large"}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config_opts opts = {.ranks = rows[i].ranks};
        const struct batch_row *row = &rows[i].row;
        struct st_config_source *source = NULL;
        struct st_config c = {0};
        char text[256] = "{";

        put_count(text, sizeof(text), "train_batch_size", row->train);
        put_count(text, sizeof(text), "train_micro_batch_size_per_gpu", row->micro);
        put_count(text, sizeof(text), "gradient_accumulation_steps", row->accum);
        strcat(text, "}");
        if (row->problem != NULL) {
            assert_int_equal(st_config_load_text(&c, &source, text, strlen(text), "test", &opts), STRATA_E_CONFIG);
            assert_non_null(strstr(strata_last_error(), row->problem));
        } else {
            assert_int_equal(st_config_load_text(&c, &source, text, strlen(text), "test", &opts), STRATA_OK);
        }
        assert_int_equal(c.train_batch, row->want_train);
        assert_int_equal(c.micro_batch, row->want_micro);
        assert_int_equal(c.grad_accum, row->want_accum);
        st_config_source_free(source);
    }
}

/* Leaves divide the micro-batches of a step; ranks have a power of two of them each, by default one. */
TEST(leaves_divide_the_step)
{
    static const struct {
        uint32_t ranks, accum, given, resumed, want, own; /* given 0: left out; resumed: of the run that goes on, 0: none */
        const char *problem;
    } rows[] = {
        {1, 6, 0, 0, 1, 1, NULL},
        {1, 6, 3, 0, 3, 3, NULL},
        {1, 6, 6, 0, 6, 6, NULL},
        {1, 6, 4, 0, 0, 0, "4 does not divide the 6 micro-batches of a step: use 3 or 6"},
        {1, 6, 12, 0, 0, 0, "12 does not divide the 6 micro-batches of a step: use 6"},
        {4, 6, 0, 0, 4, 1, NULL},
        {4, 6, 8, 0, 8, 2, NULL},
        {4, 6, 12, 0, 0, 0, "12 is not 4 ranks times a power of two that divides the 24 micro-batches of a step: use 8"},
        {4, 8, 2, 0, 0, 0, "2 is not 4 ranks times a power of two that divides the 32 micro-batches of a step: use 4"},
        {4, 8, 20, 0, 0, 0, "use 16 or 32"},
        {3, 4, 12, 0, 12, 4, NULL},
        {1, 8, 0, 4, 4, 4, NULL},
        {2, 4, 0, 4, 4, 2, NULL},
        {1, 8, 2, 4, 2, 2, NULL},
        {4, 2, 0, 2, 4, 1, NULL}, /* too few for these ranks */
        {1, 6, 0, 4, 1, 1, NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_config_opts opts = {.ranks = rows[i].ranks, .leaves = rows[i].resumed};
        struct st_config_source *source = NULL;
        struct st_policy policy;
        struct st_config c;
        char text[256] = "{";
        strata_status st;

        put_count(text, sizeof(text), "train_micro_batch_size_per_gpu", 2);
        put_count(text, sizeof(text), "gradient_accumulation_steps", rows[i].accum);
        if (rows[i].given > 0)
            snprintf(text + strlen(text), sizeof(text) - strlen(text), ", \"strata\": {\"leaves\": %u}", rows[i].given);
        strcat(text, "}");
        st = st_config_load_text(&c, &source, text, strlen(text), "test", &opts);
        if (rows[i].problem != NULL) {
            assert_int_equal(st, STRATA_E_CONFIG);
            assert_non_null(strstr(strata_last_error(), rows[i].problem));
        } else {
            assert_int_equal(st, STRATA_OK);
            st_config_policy(&policy, &c);
            assert_int_equal(c.leaves, rows[i].want);
            assert_int_equal(policy.leaves, rows[i].own);
        }
        st_config_source_free(source);
    }
}

struct bad_row {
    const char *text, *override, *pattern;
};

TEST(bad_input)
{
    static const struct bad_row rows[] = {
        /* form */
        {"", NULL, "t:1:1: a value is missing"},
        {"steps_per_print: 1", NULL, "t:1:1: { is missing: Hjson without braces"},
        {"{\n  # of AdamW\n  optimizer: {type: AdamW}\n}", NULL, "t:3:21: Hjson's texts without quotes are not read"},
        {"[]", NULL, "one JSON object"},
        {"{\"steps_per_print\": 1, # one\n steps_per_print: 2}", NULL, "t:2:2: duplicate key \"steps_per_print\""},
        {"{\"steps_per_print\": 1, \"steps_per_print\": 2}", NULL, "duplicate key \"steps_per_print\""},
        {"{\"bf16\": {}, \"bfloat16\": {}}", NULL, "bf16 and bfloat16 are one key"},
        {"{\"zero_optimization\": {\"max_live_parameters\": 1, \"stage3_max_live_parameters\": 1}}", NULL, "one key"},
        /* types and ranges */
        {"{\"train_batch_size\": \"8\"}", NULL,
         "train_batch_size: must be a whole number, but \"8\" is a string: write it without"},
        {"{\"train_batch_size\": 1.5}", NULL, "must be a whole number, not 1.5"},
        {"{\"train_batch_size\": true}", NULL, "must be a whole number, not true"},
        {"{\"bf16\": {\"enabled\": 1}}", NULL, "bf16.enabled: must be true or false, not 1"},
        {"{\"bf16\": {\"enabled\": \"true\"}}", NULL, "\"true\" is a string: write it without quotes"},
        {"{\"bf16\": true}", NULL, "bf16: must be a section"},
        {"{\"gradient_clipping\": -1}", NULL, "gradient_clipping: -1 is out of range: 0 to"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", NULL, "two numbers"},
        {"{\"optimizer\": {\"params\": {\"betas\": 0.9}}}", NULL,
         "optimizer.params.betas: must be a list of two numbers, not 0.9"},
        {"{\"optimizer\": {\"params\": {\"betas\": [\"0.9\", 0.9]}}}", NULL, "must be a number, but \"0.9\" is a string"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, \"x\"]}}}", NULL, "must be a number, not \"x\""},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 1.0]}}}", NULL, "1 is out of range"},
        {"{\"optimizer\": {\"params\": {\"betas\": [0.9, 0.99, 0.999]}}}", NULL, "two numbers, not [0.9, 0.99, 0.999]"},
        {"{\"optimizer\": {\"params\": {\"lr\": \"1e-4\"}}}", NULL, "\"1e-4\" is a string: write it without quotes"},
        {"{\"train_batch_size\": \"0x10\"}", NULL, "must be a whole number, not \"0x10\": write 16"},
        {"{\"optimizer\": {\"params\": {\"lr\": \".5\"}}}", NULL, "must be a number, not \".5\": write 0.5"},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": \"nan\"}}}", NULL, "ratio: must be a number, not \"nan\""},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": \"1e400\"}}}", NULL,
         "ratio: must be a number, not \"1e400\""},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 1.01}}}", NULL, "ratio: 1.01 is out of range: 0 to 1"},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": -0.01}}}", NULL, "ratio: -0.01 is out of range: 0 to 1"},
        {"{\"optimizer\": {\"params\": {\"eps\": 0}}}", NULL, "0 is out of range"},
        {"{\"optimizer\": {\"type\": \"AdmW\"}}", NULL, "did you mean \"AdamW\"?"},
        {"{\"optimizer\": {\"type\": \"RMSprop\"}}", NULL, "must be one of AdamW, Adam, Adagrad, Lion, SGD, not \"RMSprop\""},
        {"{\"optimizer\": {\"type\": 1}}", NULL, "must be one of AdamW, Adam, Adagrad, Lion, SGD (a string), not 1"},
        {"{\"zero_optimization\": {\"stage\": 4}}", NULL, "zero_optimization.stage: 4 is out of range: 0 to 3"},
        {"{\"zero_optimization\": {\"stage\": -1}}", NULL, "-1 is out of range"},
        {"{\"zero_optimization\": {\"offload_param\": {\"device\": \"gpu\"}}}", NULL, "must be one of none, cpu, nvme"},
        {"{\"zero_optimization\": {\"sub_group_size\": -1}}", NULL, "-1 is out of range"},
        {"{\"zero_optimization\": {\"sub_group_size\": 0.5}}", NULL, "must be a whole number"},
        {"{\"zero_optimization\": {\"sub_group_size\": \"5e8x\"}}", NULL, "must be a whole number"},
        {"{\"zero_optimization\": {\"overlap_comm\": 2}}", NULL, "must be true or false, not 2"},
        {"{\"zero_optimization\": {\"overlap_comm\": \"ture\"}}", NULL, "must be true or false, not \"ture\""},
        {"{\"train_batch_size\": Infinity}", NULL, "train_batch_size: must be a finite number"},
        {"{\"steps_per_print\": -Infinity}", NULL, "steps_per_print: must be a finite number"},
        {"{\"zero_optimization\": {\"reduce_bucket_size\": \"big\"}}", NULL, "must be a whole number, not \"big\""},
        {"{\"aio\": {\"block_size\": -4096}}", NULL, "-4096 is out of range: 4096 to 67108864"},
        {"{\"strata\": {\"device_memory\": \"200 MiBs\"}}", NULL, "must be a size"},
        {"{\"strata\": {\"device_memory\": -1}}", NULL, "out of range"},
        {"{\"strata\": {\"device_memory\": 0}}", NULL, "out of range"},
        {"{\"strata\": {\"host_memory\": \"16000P\"}}", NULL, "out of range"},
        {"{\"strata\": {\"threads\": 257}}", NULL, "257 is out of range: 0 to 256"},
        {"{\"strata\": {\"io_method\": \"sync\"}}", NULL, "must be one of auto, uring"},
        {"{\"strata\": {\"isa\": \"sse\"}}", NULL, "must be one of auto, scalar, avx2"},
        {"{\"strata\": {\"limits\": {\"io\": 1}}}", NULL, "only the fake I/O method can be slowed down"},
        {"{\"strata\": {\"limits\": {\"upload\": -1}}}", NULL, "out of range"},
        {"{\"strata\": {\"limits\": {\"link\": 1}}}", NULL, "strata.limits.link: unknown key"},
        {"{\"strata\": {\"chunk_size\": 16383}}", NULL, "out of range"},
        {"{\"strata\": {\"keep\": 0}}", NULL, "out of range"},
        {"{\"strata\": {\"save\": [\"a\"]}}", NULL, "must be a string"},
        {"{\"strata\": {\"nvme\": [1]}}", NULL, "a list of strings"},
        {"{\"strata\": {\"nvme\": 1}}", NULL,
         "strata.nvme: must be a directory, a comma-separated string or a list of strings, not 1"},
        {"{\"strata\": {\"nvme\": \"/a,,/b\"}}", NULL, "empty"},
        {"{\"strata\": {\"nvme\": \"1,2,3,4,5,6,7,8,9\"}}", NULL, "more than 8"},
        /* unknown keys */
        {"{\"bf16\": {\"comment\": 1}}", NULL, "bf16.comment: unknown key"},
        {"{\"zero_optimization\": {\"stge\": 1}}", NULL,
         "zero_optimization.stge: unknown key; the nearest is zero_optimization.stage"},
        {"{\"zero_optimisation\": {}}", NULL, "the nearest is zero_optimization"},
        {"{\"offload_optimizer\": {}}", NULL, "the nearest is zero_optimization.offload_optimizer"},
        {"{\"stage3_prefetch_bucketsize\": 1}", NULL, "the nearest is zero_optimization.stage3_prefetch_bucket_size"},
        {"{\"optimizer.type\": \"AdamW\"}", NULL, "optimizer.type: unknown key"},
        {"{\"qwertzuiop\": 1}", NULL, "qwertzuiop: unknown key; config.allow_unknown ignores it"},
        {"{\"zero_optimization\": {\"stag\": 1}}", NULL,
         "the nearest is zero_optimization.stage; config.allow_unknown ignores it"},
        {"{}", "optimizer.params.lrr=1", "the nearest is optimizer.params.lr"},
        {"{}", "optimizer.type.x=1", "optimizer.type.x: unknown key"},
        {"{}", "=1", "must be PATH=VALUE"},
        {"{}", "optimizer.params.lr", "must be PATH=VALUE"},
        {"{}", "optimizer.params.lr=fast", "optimizer.params.lr (command line): must be a number, not \"fast\""},
        {"{\"strata\": {\"freeze\": [1]}}", NULL, "strings"},
        {"{\"strata\": {\"freeze\": {}}}", NULL, "strings"},
        {"{\"strata\": {\"freeze\": [\"\"]}}", NULL, "empty"},
        {"{\"strata\": {\"freeze\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"]}}", NULL, "more than 8"},
        {"{\"strata\": {\"lora\": \"q_proj\"}}", NULL, "strata.lora: must be an object: { ... }, not \"q_proj\""},
        {"{\"strata\": {\"lora\": {\"a\": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}}", NULL,
         "strata.lora: is nested more than 16 levels deep"},
        {"{\"strata\": {\"accumulation\": \"diagonal\"}}", NULL, "must be one of auto, vertical, horizontal"},
        /* fp16: as DeepSpeed's tests refuse them */
        {"{\"fp16\": {\"loss_scale\": true}}", NULL, "fp16.loss_scale: must be a number, not true"},
        {"{\"fp16\": {\"loss_scale\": -1}}", NULL, "out of range"},
        {"{\"fp16\": {\"loss_scale\": 1e400}}", NULL, "number too large"},
        {"{\"fp16\": {\"loss_scale\": \"inf\"}}", NULL, "must be a number"},
        {"{\"fp16\": {\"enabled\": true, \"loss_scale_window\": 0}}", NULL, "fp16.loss_scale_window: 0 is out of range"},
        {"{\"fp16\": {\"enabled\": true, \"hysteresis\": -1}}", NULL, "fp16.hysteresis: -1 is out of range"},
        {"{\"fp16\": {\"enabled\": true, \"min_loss_scale\": 0}}", NULL, "fp16.min_loss_scale: 0 is out of range"},
        {"{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 127}}", NULL, "127 is out of range"},
        {"{\"fp16\": {\"initial_scale_power\": Infinity}}", NULL, "must be a finite number"},
        {"{\"fp16\": {\"enabled\": true, \"initial_scale_power\": 4, \"min_loss_scale\": 17}}", NULL,
         "above the first scale, 2^4"},
        {"{\"fp16\": {\"enabled\": true}}", "bf16.enabled=true", "bf16.enabled (command line): fp16.enabled is true too"},
        /* rules between keys */
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}}}", NULL, "give strata.nvme or nvme_path"},
        {"{\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}}", NULL,
         "offload_param.device is nvme"},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"nvme\"}, \"offload_param\": {\"device\": \"cpu\", "
         "\"nvme_path\": \"/x\"}}}",
         NULL, "offload_optimizer.device is nvme, but no directory"},
        {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": \"/x\"}, "
         "\"offload_param\": {\"device\": \"nvme\"}}}",
         NULL, "offload_param.device is nvme, but no directory"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"total_num_steps\": 5}}}", NULL,
         "belongs to WarmupDecayLR, WarmupCosineLR, and scheduler.type is WarmupLR"},
        {"{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0, \"cycle_max_lr\": 1}}}",
         "scheduler.params.warmup_num_steps=5", "warmup_num_steps (command line): belongs to WarmupLR"},
        {"{\"scheduler\": {\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 0}}}", NULL, "cycle_max_lr: OneCycle needs it"},
        {"{\"scheduler\": {\"type\": \"LRRangeTest\", \"params\": {\"lr_range_test_step_size\": 0}}}", NULL, "out of range"},
        {"{\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"last_batch_iteration\": 5}}}", NULL, "knows its position"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        load_bad(rows[i].text, rows[i].override, rows[i].pattern);
}

/* Keys of speed and place take what DeepSpeed takes: the nearest that they have, and the run says so. */
TEST(what_changes_no_result_is_brought_near)
{
    static const struct {
        const char *text, *path, *value, *reason; /* reason NULL: it is right as it is */
    } rows[] = {
        {"{\"zero_optimization\": {\"sub_group_size\": 0}}", "zero_optimization.sub_group_size", "1000000000",
         "asked for 0, and 1000000000 is used"},
        {"{\"zero_optimization\": {\"sub_group_size\": 1}}", "zero_optimization.sub_group_size", "16384",
         "asked for 1, and 16384 is used: it is 16384 to 9007199254740992; results are the same"},
        {"{\"zero_optimization\": {\"sub_group_size\": 16383}}", "zero_optimization.sub_group_size", "16384", "16384 is used"},
        {"{\"zero_optimization\": {\"sub_group_size\": 16384}}", "zero_optimization.sub_group_size", "16384", NULL},
        {"{\"zero_optimization\": {\"sub_group_size\": \"40000\"}}", "zero_optimization.sub_group_size", "40000", NULL},
        {"{\"zero_optimization\": {\"sub_group_size\": 1e300}}", "zero_optimization.sub_group_size", "9007199254740992",
         "asked for 1e+300"},
        {"{\"aio\": {\"queue_depth\": 0}}", "aio.queue_depth", "auto", "asked for 0, and auto is used: it is 1 to 4096"},
        {"{\"aio\": {\"queue_depth\": 5000}}", "aio.queue_depth", "4096", "4096 is used"},
        {"{\"aio\": {\"block_size\": 0}}", "aio.block_size", "1048576", "1048576 is used"},
        {"{\"aio\": {\"block_size\": 512}}", "aio.block_size", "4096",
         "asked for 512, and 4096 is used: it is 4096 to 67108864 in steps of 4096"},
        {"{\"aio\": {\"block_size\": 1000000}}", "aio.block_size", "999424", "999424 is used"},
        {"{\"aio\": {\"block_size\": 268435456}}", "aio.block_size", "67108864", "67108864 is used"},
        {"{\"steps_per_print\": Infinity}", "steps_per_print", "4294967295", "asked for Infinity, and 4294967295 is used"},
        {"{\"steps_per_print\": 1e10}", "steps_per_print", "4294967295", "asked for 10000000000"},
        {"{\"fp16\": {\"enabled\": true, \"hysteresis\": 0}}", "fp16.hysteresis", "0", NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        struct st_config config;
        const struct st_config_row *row;

        if (config_load(&config, &source, rows[i].text, NULL) != STRATA_OK)
            fail_msg("%s: %s", rows[i].text, strata_last_error());
        row = find_row(source, rows[i].path);
        assert_string_equal(row->value, rows[i].value);
        assert_int_equal(row->verdict, ST_VERDICT_HONOURED);
        assert_int_equal(row->announced, rows[i].reason != NULL);
        if (rows[i].reason == NULL ? row->reason != NULL : strstr(row->reason, rows[i].reason) == NULL)
            fail_msg("%s: %s", rows[i].text, row->reason);
        st_config_source_free(source);
    }
}

/* The whole table: no key that changes no result refuses a value that DeepSpeed 0.19.8 takes.  fp16's numbers are such keys where
 * a run does not train in it. */
TEST(no_key_of_speed_refuses_what_deepspeed_takes)
{
    static const char *const switches[] = {"true", "0", "1", "\"on\"", "False", "\"n\""};
    static const char *const numbers[] = {"0", "1", "\"1\"", "1.0"}, *const lists[] = {"[]", "\"Block\"", "[\"Block\"]"};
    const struct st_field *f;
    uint32_t tried = 0;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        const bool idle = st_field_inside(f, "fp16") && f->type != ST_FIELD_BOOL;
        const char *const *values = f->type == ST_FIELD_BOOL ? switches : f->type == ST_FIELD_LIST ? lists : numbers;
        const uint32_t count = f->type == ST_FIELD_BOOL ? 6 : f->type == ST_FIELD_LIST ? 3 : idle ? 2 : 4;

        if ((!idle && st_field_changes(f) == ST_CHANGES_RESULTS) || f->verdict >= ST_VERDICT_REJECTED ||
            st_field_inside(f, "strata") ||
            (f->type != ST_FIELD_BOOL && f->type != ST_FIELD_INT && f->type != ST_FIELD_REAL && f->type != ST_FIELD_LIST))
            continue;
        for (uint32_t k = 0; k < count; k++, tried++) {
            struct st_config_source *source;
            struct st_config config;
            char override[160];

            snprintf(override, sizeof(override), "%s=%s", f->path, values[k]);
            if (config_load(&config, &source, "{}", override) != STRATA_OK)
                fail_msg("%s: %s", override, strata_last_error());
            st_config_source_free(source);
        }
    }
    assert_true(tried > 300);
}

/* What would change results in a run of several ranks, or of epochs, is refused there alone. */
TEST(what_the_run_makes_of_a_key)
{
    static const struct {
        const char *text, *pattern; /* NULL: taken */
        struct st_config_opts opts;
    } rows[] = {
        {"{\"gradient_allreduce_op\": \"SUM\"}", "the mean of 4 ranks is trained", {.ranks = 4}},
        {"{\"gradient_allreduce_op\": \"sum\"}", NULL, {.ranks = 1}},
        {"{\"gradient_allreduce_op\": \"mean\"}", NULL, {.ranks = 4}},
        {"{\"dataloader_drop_last\": true}", "or give config.max_steps", {.steps_later = true}},
        {"{\"dataloader_drop_last\": true}", NULL, {.max_steps = 3}},
        {"{\"dataloader_drop_last\": false}", NULL, {.steps_later = true}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        struct st_config config;
        const strata_status st = st_config_load_text(&config, &source, rows[i].text, strlen(rows[i].text), "t", &rows[i].opts);

        assert_int_equal(st, rows[i].pattern != NULL ? STRATA_E_CONFIG : STRATA_OK);
        if (rows[i].pattern != NULL)
            assert_non_null(strstr(st_config_problem_at(source, 0), rows[i].pattern));
        st_config_source_free(source);
    }
}

/* `before`, a name of this many bytes, and `after`; owned by the caller. */
static char *with_long_name(const char *before, size_t bytes, const char *after)
{
    const size_t room = strlen(before) + bytes + strlen(after) + 1;
    char *name = malloc(bytes + 1), *text = malloc(room);

    assert_true(name != NULL && text != NULL);
    memset(name, 'a', bytes);
    name[bytes] = '\0';
    snprintf(text, room, "%s%s%s", before, name, after);
    free(name);
    return text;
}

/* The longest text that there is room for is taken whole, and one byte more is refused. */
TEST(texts_have_a_longest_length)
{
    static const struct {
        const char *before, *after, *refusal;
        size_t most, stored;
    } rows[] = {
        {"{\"strata\": {\"save\": \"", "\"}}", "strata.save: a directory's name has 512 bytes, and at most 511", 511, 511},
        {"{\"strata\": {\"nvme\": \"", "\"}}", "strata.nvme: a directory's name has 512 bytes, and at most 511", 511, 511},
        {"{\"strata\": {\"nvme\": [\"/a\", \"", "\"]}}", "strata.nvme: a directory's name has 512 bytes", 511, 511},
        {"{\"strata\": {\"freeze\": \"", "\"}}", "strata.freeze: a pattern has 128 bytes, and at most 127", 127, 127},
        {"{\"strata\": {\"freeze\": [\"b\", \"", "\"]}}", "strata.freeze: a pattern has 128 bytes", 127, 127},
        {"{\"strata\": {\"lora\": {\"a\": \"", "\"}}}", "has 32768 bytes without spaces; at most 32767 are allowed", 32759,
         32767},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *fits = with_long_name(rows[i].before, rows[i].most, rows[i].after);
        char *longer = with_long_name(rows[i].before, rows[i].most + 1, rows[i].after);
        const struct st_config config = load_good(fits, NULL);
        const char *kept[] = {config.save,      config.nvme_dirs[0], config.nvme_dirs[1],
                              config.freeze[0], config.freeze[1],    config.lora};

        assert_int_equal(strlen(kept[i]), rows[i].stored);
        load_bad(longer, NULL, rows[i].refusal);
        free(fits);
        free(longer);
    }
}
