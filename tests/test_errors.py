# SPDX-License-Identifier: Apache-2.0
from smartmem_tvm.errors import UserError


def test_the_message_is_all_there_is():
    assert str(UserError("model.onnx: no such file.")) == "model.onnx: no such file."


def test_the_message_is_one_line_whatever_names_it_quotes():
    assert str(UserError("input 'a\nb\t' is\nno tensor.")) == "input 'a b ' is no tensor."


def test_bad_input_ends_with_the_usual_code_for_misuse():
    assert UserError.EXIT_CODE == 2
