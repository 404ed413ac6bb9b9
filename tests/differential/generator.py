"""Safetensors files, valid and not: known cases first, then endless generated and mutated ones."""

import json
import math
import random
import struct

BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

NAMES = [
    "", "a", "b", "x.weight", "x.weight.absmax", "a/b", "..", "/", "%2F", "dtype", "shape", "__meta__",
    "__metadata__ ", "日本語", "😀", "\ufffe", "\U0010ffff", "\x7f", "e\u0301", "\u00e9", "n" * 300,
]  # fmt: skip
STRINGS = [  # JSON string literals, right and wrong
    '""', '"x"', '"\\u0000"', '"\\u0061"', '"\\uD83D\\uDE00"', '"\\ud83d\\ude00"', '"\\/"',
    '"\\b\\f\\n\\r\\t\\"\\\\"', '"\x7f"', '"日本"', '"\ufeff"', '"\\uFFFE"', '"\\udbff\\udfff"',
    '"\\ud800"', '"\\udc00"', '"\\ud800x"', '"\\ud800\\n"', '"\\ud800\\u0041"', '"\\ud800\\ud800"',
    '"\\udc00\\ud800"', '"\\u12"', '"\\u00zz"', '"\\x41"', '"\\U0041"', '"\t"', '"\n"', '"\x00"',
    '"\x1f"', '"', "'x'", '"\\"', '"\\u{41}"', '"\\0"',
]  # fmt: skip
NUMBERS = [
    "0", "-0", "1", "-1", "00", "01", "-01", "+1", ".5", "1.", "1.5", "-0.0", "0e0", "1e1", "1E+1", "1e-1",
    "4.0", "1e", "1e+", "-", "1e999", "-1e999", "1e-999", "0e999", "0.0e999", "1e308", "1e309",
    "1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308",
    "18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809",
    "9" * 308, "9" * 309, "1" + "0" * 308, "1" + "0" * 309, "17976931348623157" + "0" * 292,
    "1" + "0" * 320 + "e-20", "0." + "0" * 50 + "1e358", "0." + "0" * 50 + "1e360", "0." + "0" * 400 + "1",
    "1e99999999999999999999", "0e99999999999999999999", "1e-99999999999999999999", "1e2147483648",
    "9" * 5000, "NaN", "Infinity", "-Infinity", "0x10", "1_000", "١",
]  # fmt: skip
WORDS = ["null", "true", "false", "tru", "nul", "True", "None", "undefined", ""]
CONTAINERS = [
    "[]", "{}", "[1,]", "[,]", "[1 2]", "[[]]", '{"a":1}', '{"a":1,}', "{a:1}", '{"a"}', '{"a":}', "{,}", "[",
    "]", "{", "}", '{"a":1,"a":2}', '[null,true,1.5,"s",{}]', '{"\\ud800":1}', "/**/1", "//\n1", "[1]]",
]  # fmt: skip
SPACES = ["", "", "", " ", "\n", "\t", "\r", " \r\n\t"]
NO_SPACES = ["\x0b", "\x0c", "\xa0", "\ufeff", "\x00", "\u2028"]
AROUND_2_64 = [2**64 - 1, 2**64 - 2, 2**64, 2**63, 2**63 - 1, 2**61, 2**61 - 1, 2**60, 2**32, 2**32 - 1]


def frame(header, data=b"", length=None):
    header = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype="I32", shape="[2,2]", offsets="[0,16]", extra=""):
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{extra}}}'


def known():
    """The cases that the format's description names, and the edges found around them."""
    good = frame(f'{{"test":{entry()}}}', bytes(16))
    yield from (b"", bytes(7), bytes(8), bytes(9), frame("", length=60), good)
    yield from (good + bytes(n) for n in (1, 2, 8))
    yield from (good[:-n] for n in (1, 2, 16, 17, 40))
    for length in (0xFFFFFFFF0000003C, 100_000_000, 100_000_001, 2**64 - 1, 2**64 - 8, 2**63):
        yield struct.pack("<Q", length) + good[8:]
    for header in (b"\xff", b"{", b"{}\r \t\n", b"\t\n{}\r ", b"{}   ", b"{}\0\0", b"\xef\xbb\xbf{}",
                   b"   ", b"{}{}", b"{},", b"{}\xff", b"null", b"[]", b'""', b"1"):  # fmt: skip
        yield frame(header)
    for value in ("null", "{}", "[]", '""', "false", '{"framework":"pt"}', '{"a":null}', '{"a":5000}',
                  '{"a":true}', '{"a":[]}', '{"a":{}}', '{"a":"1","a":"2"}', '{"":""}'):  # fmt: skip
        yield frame(f'{{"__metadata__":{value}}}')
        yield frame(f'{{"__metadata__":{value},"__metadata__":{value}}}')
        yield frame(f'{{"\\u005f_metadata__":{value},"__metadata__":null}}')
        yield frame(f'{{"__metadata__":{value},"t":{entry()}}}', bytes(16))
    for depth in range(120, 132):
        for opened, closed in (("[", "]"), ('{"k":', "}"), ('[{"k":', "}]")):
            middle = "1" if opened != "[" else ""
            deep = opened * depth + middle + closed * depth
            yield frame(f'{{"t":{entry(extra=f",{chr(34)}x{chr(34)}:{deep}")}}}', bytes(16))
            half = opened * (depth // 2) + middle + closed * (depth // 2)
            yield frame(f'{{"t":{entry(extra=f",{chr(34)}x{chr(34)}:{half}")}}}', bytes(16))
            yield frame(deep)
    for literal in STRINGS + NUMBERS + WORDS + CONTAINERS:
        yield frame(f'{{"t":{entry(extra=f",{chr(34)}x{chr(34)}:{literal}")}}}', bytes(16))
        yield frame(f'{{"t":{entry(extra=f",{chr(34)}x{chr(34)}:[{literal}]")}}}', bytes(16))
        yield frame(f'{{"t":{entry(extra=f",{literal}:1")}}}', bytes(16))
        yield frame(f'{{"t":{entry(shape=f"[{literal}]", offsets="[0,4]")}}}', bytes(4))
        yield frame(f'{{"t":{entry(shape="[]", offsets=f"[{literal},4]")}}}', bytes(4))
        yield frame(f'{{"t":{literal}}}')
        yield frame(f'{{{literal}:{entry(shape="[0]", offsets="[0,0]")}}}')
        yield frame(f'{{"__metadata__":{{"k":{literal}}}}}')
        yield frame(f'{{"__metadata__":{{{literal}:"v"}}}}')
        yield frame(f'{{"__metadata__":{literal}}}')
        yield frame(literal)
    for first, second in ((a, b) for a in AROUND_2_64 + [0, 2] for b in AROUND_2_64 + [0, 2]):
        for dtype in ("U8", "F4", "F6_E2M3", "F64"):
            for shape in (f"[{first},{second}]", f"[{first},{second},0]", f"[{first}]"):
                yield frame(f'{{"t":{entry(dtype, shape, "[0,0]")}}}')
        yield frame(f'{{"t":{entry("U8", f"[{first}]", f"[{second},{first}]")}}}')
    step = 2**61 - 1
    tensors = [(n * step, (n + 1) * step) for n in range(8)]
    for last in range(9):
        spans = [*tensors, (8 * step, 8 * step + last)]
        members = ",".join(
            f'"{n}":{entry("U8", f"[{end - begin}]", f"[{begin},{end}]")}'
            for n, (begin, end) in enumerate(spans)
        )
        yield frame(f"{{{members}}}")


def array(numbers):
    return f"[{','.join(map(str, numbers))}]"


class Case:
    """A header as lists of [key, value] texts, so that a fault can be put anywhere in it."""

    def __init__(self, chance):
        self.chance, self.members, begin = chance, [], 0
        for name in chance.sample(NAMES, chance.choice([0, 1, 1, 2, 2, 3, 5])):
            dtype = chance.choice(list(BITS))
            shape = [chance.choice([0, 1, 2, 3, 4, 8]) for _ in range(chance.randrange(4))]
            if math.prod(shape) * BITS[dtype] % 8:
                shape.append(8 if chance.random() < 0.95 else 1)
            size = math.prod(shape) * BITS[dtype] // 8
            fields = [
                ['"dtype"', f'"{dtype}"'],
                ['"shape"', array(shape)],
                ['"data_offsets"', array([begin, begin + size])],
            ]
            chance.shuffle(fields)
            self.members.append([self.string(name), fields])
            begin += size
        if chance.random() < 0.3:
            self.members.append(['"__metadata__"', '{"format":"pt","k":"\\u0000"}'])
        chance.shuffle(self.members)
        self.size, self.head, self.tail, self.length = begin, "", chance.choice(SPACES), 0

    def string(self, text):
        literal = json.dumps(text, ensure_ascii=self.chance.random() < 0.3)
        if text and self.chance.random() < 0.1:
            literal = f'"\\u{ord(text[0]):04x}{literal[2:]}' if text[0] in "abdsx" else literal
        return literal

    def tensors(self):
        return [member for member in self.members if isinstance(member[1], list)]

    def field(self, name):
        """A random tensor's field of that name, if there is one."""
        fields = [f for member in self.tensors() for f in member[1] if f[0] == f'"{name}"']
        return self.chance.choice(fields) if fields else ["", "[0,0]"]

    def file(self):
        chance = self.chance

        def join(parts):
            parts = list(parts)
            return "".join(
                part + ("," if position < len(parts) - 1 else "") + chance.choice(SPACES)
                for position, part in enumerate(parts)
            )

        def value(content):
            if isinstance(content, str):
                return content
            return f"{{{join(f'{key}:{chance.choice(SPACES)}{text}' for key, text in content)}}}"

        text = f"{{{join(f'{key}:{value(content)}' for key, content in self.members)}}}"
        header = (self.head + text + self.tail).encode("utf-8", "surrogatepass")
        return frame(header, bytes(max(0, self.size)), max(0, len(header) + self.length))


def random_number(chance):
    """A number around the largest double, where what a reader makes of it depends on its algorithm."""
    digits = "".join(chance.choices("0123456789", k=chance.choice([1, 2, 17, 20, 21, 300, 309, 330])))
    whole = digits.lstrip("0") or "0"
    fraction = "." + "".join(chance.choices("0123456789", k=chance.choice([1, 3, 20, 320])))
    exponent = chance.choice("eE") + chance.choice(["", "+", "-"]) + str(
        chance.choice([0, 1, 10, 288, 289, 290, 307, 308, 309, 330, 617, 2**31 - 1, 2**31])
    )  # fmt: skip
    return (
        chance.choice(["", "-"])
        + whole
        + (fraction if chance.random() < 0.5 else "")
        + (exponent if chance.random() < 0.6 else "")
    )


def odd_value(chance):
    kind = chance.randrange(6)
    if kind == 0:
        return random_number(chance)
    if kind == 1:
        depth = chance.choice([1, 2, 50, 124, 125, 126, 127, 128])
        opened, closed = chance.choice([("[", "]"), ('{"k":', "}")])
        middle = chance.choice(["0", '"s"', "[]", "{}"])
        return opened * depth + middle + closed * depth
    if kind == 2:
        return f"[{odd_value(chance)},{chance.choice(NUMBERS)}]"
    return chance.choice(chance.choice([STRINGS, NUMBERS, WORDS, CONTAINERS]))


def put_unknown_field(case):
    if case.tensors():
        fields = case.chance.choice(case.tensors())[1]
        key = case.chance.choice(STRINGS) if case.chance.random() < 0.2 else '"extra"'
        fields.insert(case.chance.randrange(len(fields) + 1), [key, odd_value(case.chance)])


def put_harmless_field(case):
    if case.tensors():
        fields = case.chance.choice(case.tensors())[1]
        value = case.chance.choice(["1", "-1", "1.5e3", '"s"', "[[],{}]", "null", '{"a":1,"a":2}'])
        fields.insert(case.chance.randrange(len(fields) + 1), ['"extra"', value])


def repeat_member(case):
    if case.members:
        key, value = case.chance.choice(case.members)
        copy = value if isinstance(value, str) else [list(field) for field in value]
        case.members.insert(case.chance.randrange(len(case.members) + 1), [key, copy])


def repeat_field(case):
    if case.tensors():
        fields = case.chance.choice(case.tensors())[1]
        if fields:
            fields.append(list(case.chance.choice(fields)))


def drop_field(case):
    if case.tensors():
        fields = case.chance.choice(case.tensors())[1]
        if fields:
            fields.pop(case.chance.randrange(len(fields)))


def rename_field(case):
    if case.tensors():
        field = case.field(case.chance.choice(["dtype", "shape", "data_offsets"]))
        field[0] = case.chance.choice(['"Dtype"', '"sh\\u0061pe"', '"d\\u0074ype"', '"dtype"', '"shape"'])


def replace_value(case):
    case.field(case.chance.choice(["dtype", "shape", "data_offsets"]))[1] = odd_value(case.chance)


def replace_dtype(case):
    case.field("dtype")[1] = case.chance.choice(
        [*(f'"{dtype}"' for dtype in BITS), '"f32"', '"F128"', '"F32 "', '"F8_E4M3FN"', '"U\\u0038"',
         '{"F32":null}', '{"U8":null}', '{"U8":{}}', '{"U8":null,"U8":null}', "{}", '["U8"]', "null"]
    )  # fmt: skip


def nudge_number(case):
    field = case.field(case.chance.choice(["shape", "data_offsets"]))
    numbers = [part.strip() for part in field[1].strip("[]").split(",") if part.strip()]
    if numbers:
        position = case.chance.randrange(len(numbers))
        old = int(numbers[position]) if numbers[position].isdecimal() else 1
        numbers[position] = case.chance.choice(
            [str(old + 1), str(max(0, old - 1)), str(old * 2), f"{old}.0", f"{old}e0", f"-{old}",
             f"0{old}", f'"{old}"', str(case.chance.choice(AROUND_2_64))]
        )  # fmt: skip
    if case.chance.random() < 0.3:
        case.chance.shuffle(numbers)
    if case.chance.random() < 0.2:
        numbers.append(case.chance.choice(["0", "1", "2"]))
    field[1] = array(numbers)


def entry_as_array(case):
    if case.tensors():
        member = case.chance.choice(case.tensors())
        member[1] = f"[{','.join(dict(map(tuple, member[1])).values())}]"
        if case.chance.random() < 0.7:
            fields = {"dtype": '"U8"', "shape": "[4]", "data_offsets": "[0,4]"}
            member[1], case.members, case.size = f"[{','.join(fields.values())}]", [member], 4


def entry_as_odd_value(case):
    if case.members:
        case.chance.choice(case.members)[1] = odd_value(case.chance)


def odd_name(case):
    if case.members:
        case.chance.choice(case.members)[0] = case.chance.choice(STRINGS)


def odd_metadata(case):
    chance = case.chance
    value = chance.choice(STRINGS + NUMBERS + WORDS)
    key = chance.choice(STRINGS) if chance.random() < 0.3 else '"k"'
    case.members.append(['"__metadata__"', chance.choice([value, f"{{{key}:{value}}}"])])


def odd_surroundings(case):
    text = case.chance.choice(NO_SPACES + ["x", "}", ",", "{}", "null", "  ", "\n", "\0\0"])
    if case.chance.random() < 0.5:
        case.head = text
    else:
        case.tail = text


def wrong_size(case):
    case.size += case.chance.choice([-8, -2, -1, 1, 2, 8, 100])


def wrong_length(case):
    case.length = case.chance.choice([-1000, -2, -1, 1, 2, 1000, 10**8, 2**40])


def swap_offsets(case):
    one, other = case.field("data_offsets"), case.field("data_offsets")
    one[1], other[1] = other[1], one[1]


FAULTS = [
    put_unknown_field, put_unknown_field, put_unknown_field, put_harmless_field, put_harmless_field,
    repeat_member, repeat_field, drop_field, rename_field, replace_value, replace_dtype, nudge_number,
    nudge_number, entry_as_array, entry_as_odd_value, odd_name, odd_metadata, odd_surroundings,
    wrong_size, wrong_length, swap_offsets,
]  # fmt: skip


def mutated(file, chance):
    """A few bytes changed, removed, added or repeated; half the time the length is made to fit."""
    header = bytearray(file[8 : 8 + int.from_bytes(file[:8], "little")])
    data = file[8 + len(header) :]
    length = len(header)
    for _ in range(chance.choice([1, 1, 2, 4])):
        position = chance.randrange(len(header) + 1)
        kind = chance.randrange(5)
        if kind == 0 and header:
            header[position % len(header)] ^= 1 << chance.randrange(8)
        elif kind == 1 and header:
            header[position % len(header)] = chance.choice(b'{}[]",:0123456789\\ue+-. \n\0\xff\xc3')
        elif kind == 2:
            del header[position : position + chance.choice([1, 1, 2, 8])]
        elif kind == 3:
            header[position:position] = chance.choice(
                [b'"', b"\\", b"0", b"e1", b".0", b"-", b",", b"[]", b"\xed\xa0\x80", b"\xc0\xaf",
                 b"\xf4\x90\x80\x80", b"\xf0\x9f\x98", b"\xef\xbf\xbe", b"\xe2\x82", b"\x80", b"\0"]
            )  # fmt: skip
        else:
            end = position + chance.randrange(20)
            header[position:position] = header[position:end]
    return frame(bytes(header), data, len(header) if chance.random() < 0.7 else length)


def generated(chance):
    case = Case(chance)
    for fault in chance.choices(FAULTS, k=chance.choice([0, 0, 1, 1, 1, 2, 3])):
        fault(case)
    file = case.file()
    return mutated(file, chance) if chance.random() < 0.2 else file


def files(seed):
    yield from known()
    chance = random.Random(seed)
    while True:
        yield generated(chance)
