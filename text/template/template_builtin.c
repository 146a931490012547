/* template_builtin.c - templates for models that bring none: the well-known formats, for the same interpreter. */
#include "text/template/template_internal.h"

#include <string.h>

#define ALTERNATE                                                                                                                \
    "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}"                                                               \
    "{{ raise_exception('after an optional system message, user and assistant must alternate') }}{% endif %}"

/* Takes a system message off the front: `system` and `turns`. */
#define TAKE_SYSTEM                                                                                                              \
    "{%- set turns = messages %}{% set system = '' %}"                                                                           \
    "{%- if messages and messages[0].role == 'system' %}{% set system = messages[0].content %}"                                  \
    "{% set turns = messages[1:] %}{% endif %}"

#define CHATML_TURNS                                                                                                             \
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"  \
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static const struct {
    const char *name, *text;
} builtins[] = {
    {"alpaca", TAKE_SYSTEM
     "{{- system or 'Below is an instruction that describes a task. Write a response that appropriately completes the "
     "request.' }}{{ '\\n\\n' }}"
     "{%- for message in turns %}" ALTERNATE
     "{%- if message.role == 'user' %}{{ '### Instruction:\\n' + message.content + '\\n\\n### Response:\\n' }}"
     "{%- else %}{{ message.content + eos_token + '\\n\\n' }}{% endif %}{% endfor %}"},
    {"chatml", CHATML_TURNS},
    {"gemma", TAKE_SYSTEM "{{- bos_token }}{% for message in turns %}" ALTERNATE
                          "{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
                          "{%- if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}"
                          "{{- message.content | trim }}{{ '<end_of_turn>\\n' }}{% endfor %}"
                          "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"},
    {"llama2", TAKE_SYSTEM "{%- for message in turns %}" ALTERNATE "{%- if message.role == 'user' %}{{ bos_token + '[INST] ' }}"
                           "{%- if loop.first and system %}{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}"
                           "{{- message.content | trim }}{{ ' [/INST]' }}"
                           "{%- else %}{{ ' ' + (message.content | trim) + ' ' + eos_token }}{% endif %}{% endfor %}"},
    {"llama3",
     "{{- bos_token }}{% for message in messages %}"
     "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content | trim) + '<|eot_id|>' }}"
     "{%- endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    {"mistral",
     TAKE_SYSTEM "{{- bos_token }}{% for message in turns %}" ALTERNATE
                 "{%- if message.role == 'user' %}{{ '[INST] ' }}{% if loop.last and system %}{{ system + '\\n\\n' }}{% endif %}"
                 "{{- message.content }}{{ ' [/INST]' }}"
                 "{%- else %}{{ ' ' + message.content + eos_token }}{% endif %}{% endfor %}"},
    {"qwen", "{%- if not messages or messages[0].role != 'system' %}"
             "{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}"
             "{%- endif %}" CHATML_TURNS},
};

#define BUILTIN_COUNT (sizeof(builtins) / sizeof(builtins[0]))

const char *st_template_builtin(const char *name)
{
    for (size_t i = 0; i < BUILTIN_COUNT; i++)
        if (strcmp(builtins[i].name, name) == 0)
            return builtins[i].text;
    return NULL;
}

const char *st_template_builtin_name(uint32_t index)
{
    return index < BUILTIN_COUNT ? builtins[index].name : NULL;
}
