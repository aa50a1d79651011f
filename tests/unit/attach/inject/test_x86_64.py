"""Registers and frames are those of the kernel and of the calling convention."""

from __future__ import annotations

import struct

import pytest

from probe.attach.inject.x86_64 import NO_SYSCALL, RESTART_SYSCALL, WORD, X86_64

MACHINE = X86_64()
STATE = bytes(832)  # an extended state with AVX


def registers(**known: int) -> dict[str, int]:
    blank = MACHINE.unpack(bytes(27 * 8))
    return {**blank, "rsp": 0x7FFF_1234_5678, "rip": 0x4000, "orig_rax": NO_SYSCALL, **known}


def test_registers_survive_packing():
    values = {name: index * 0x0101_0101 for index, name in enumerate(registers())}
    assert MACHINE.unpack(MACHINE.pack(values)) == values


@pytest.mark.parametrize("result", [-512, -513, -514])
def test_an_interrupted_call_is_restarted(result):
    after = MACHINE.resumed(registers(orig_rax=202, rax=result & WORD))
    assert (after["rax"], after["rip"], after["orig_rax"]) == (202, 0x4000 - 2, NO_SYSCALL)


def test_an_interrupted_sleep_resumes_with_the_time_left():
    after = MACHINE.resumed(registers(orig_rax=35, rax=-516 & WORD))
    assert (after["rax"], after["rip"]) == (RESTART_SYSCALL, 0x4000 - 2)


def test_a_completed_call_and_user_code_resume_where_they_are():
    answered = MACHINE.resumed(registers(orig_rax=0, rax=17))
    assert (answered["rax"], answered["rip"]) == (17, 0x4000)
    computing = MACHINE.resumed(registers(rax=-512 & WORD))
    assert (computing["rax"], computing["rip"]) == (-512 & WORD, 0x4000)


def test_a_thread_in_a_system_call_is_recognized():
    assert MACHINE.syscall(registers(orig_rax=202)) == 202
    assert MACHINE.syscall(registers()) is None


@pytest.mark.parametrize("stack", range(0x7FFF_0000_1000, 0x7FFF_0000_1080, 8))
def test_the_signal_frame_is_aligned_below_the_red_zone_and_restores_the_registers(stack):
    before = registers(rsp=stack, r15=15, eflags=0x246, rip=0xABCD)
    frame = MACHINE.signal_frame(before, STATE, 0x55, (1, 2, 3))
    assert frame.stack % 16 == 8  # as after a call instruction
    assert frame.stack + len(frame.data) <= stack - 128
    assert struct.unpack_from("<3Q", frame.data) == (1, 2, 3)
    context = frame.data[24:]
    assert struct.unpack_from("<3Q", context, 40 + 15 * 8) == (stack, 0xABCD, 0x246)
    assert struct.unpack_from("<Q", context, 296) == (0x55,)
    (state_at,) = struct.unpack_from("<Q", context, 224)
    assert state_at % 64 == 0
    state = frame.data[state_at - frame.stack :]
    assert struct.unpack_from("<II", state, 464) == (0x46505853, len(STATE) + 4)
    assert state[-4:] == struct.pack("<I", 0x46505845)
    assert frame.stack + 24 + 304 <= frame.scratch <= state_at - 8


def test_a_call_gets_its_arguments_and_the_flags_of_a_function_entry():
    inside = MACHINE.calling(registers(eflags=0x746), 0x9000, [1, 2, 3, 4, 5, 6], 0x1008)
    assert [inside[name] for name in ("rdi", "rsi", "rdx", "rcx", "r8", "r9")] == [1, 2, 3, 4, 5, 6]
    assert (inside["rip"], inside["rsp"], inside["eflags"], inside["orig_rax"]) == (0x9000, 0x1008, 0x246, NO_SYSCALL)
