"""Every cause for which a process cannot be attached to has its own code, sentence and remedy."""

from __future__ import annotations

import dataclasses
import os
import string

import pytest

from probe.attach import refusals
from probe.attach.refusals import Access, judge
from probe.errors import REFUSALS
from probe.host.process_status import my_status

FREE = Access(
    pid=4242,
    my_uid=1000,
    target_uid=1000,
    may_trace_all=False,
    yama=0,
    same_user_namespace=True,
    dumpable=True,
    target_has_more_capabilities=False,
    seccomp=False,
    memory_opened=False,
)


@pytest.mark.parametrize(
    ("facts", "code", "says"),
    [
        ({"target_uid": 0}, "other-user", "uid 0"),
        ({"yama": 1}, "yama", "ptrace_scope is 1"),
        ({"yama": 2}, "yama", "root"),
        ({"yama": 3, "may_trace_all": True}, "yama-off", "reboot"),
        ({"same_user_namespace": False}, "user-namespace", "namespace"),
        ({"dumpable": False}, "not-dumpable", "dumpable"),
        ({"target_has_more_capabilities": True}, "capabilities", "capabilities"),
        ({"seccomp": True, "memory_opened": True, "may_trace_all": True}, "seccomp", "seccomp"),
        ({"may_trace_all": True}, "security-module", "security module"),
        ({}, "security-module", "SELinux"),
    ],
)
def test_each_rule_of_the_kernel_has_its_own_code(facts, code, says):
    error = judge(dataclasses.replace(FREE, **facts))
    assert error.code == code
    assert says in error.message
    assert error.hint


def test_rules_are_tried_in_the_kernels_order():
    everything = dataclasses.replace(FREE, target_uid=0, yama=1, dumpable=False, target_has_more_capabilities=True)
    assert judge(everything).code == "other-user"
    assert judge(dataclasses.replace(everything, target_uid=1000)).code == "not-dumpable"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"process": 1}, "is-thread"),
        ({"state": "Z"}, "zombie"),
        ({"state": "T"}, "stopped"),
        ({"state": "t", "tracer": 1}, "traced"),
        ({"shadow_stack": True}, "shadow-stack"),
    ],
)
def test_a_state_that_forbids_attaching_is_refused(change, code):
    with pytest.raises(refusals.AttachError) as caught:
        refusals.check_state(os.getpid(), dataclasses.replace(my_status(), **change))
    assert caught.value.code == code
    assert caught.value.hint


@pytest.mark.parametrize("code", REFUSALS)
def test_every_refusal_has_a_message_and_a_hint_with_all_values_filled_in(code):
    names = {name for text in REFUSALS[code] for _, name, _, _ in string.Formatter().parse(text) if name}
    error = refusals.refusal(code, 4242, **dict.fromkeys(names - {"pid"}, 1))
    assert error.code == code and error.message and error.hint and "{" not in str(error)


def test_an_ordinary_process_is_not_refused():
    refusals.check_state(os.getpid(), my_status())


def test_sudo_is_told_where_probe_is():
    """Its secure_path has no virtual environment, no conda and no ~/.local."""
    hints = [hint for _, hint in REFUSALS.values()]
    assert not [hint for hint in hints if "sudo probe " in hint]
    assert judge(dataclasses.replace(FREE, yama=1)).hint.startswith('sudo "$(command -v probe)" attach 4242, or ')
