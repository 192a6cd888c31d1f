"""What a model says to a question: python ask.py FOLDER [ADAPTER] "What is the capital of France?" """

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

folder, *adapter, question = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
if adapter:
    from peft import PeftModel

    model = PeftModel.from_pretrained(model, adapter[0])
messages = [{"role": "user", "content": question}]
prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
written = model.generate(**prompt, max_new_tokens=40, do_sample=False)
print(tokenizer.decode(written[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))
