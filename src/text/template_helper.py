"""Renders chat templates for loom: runs inside the helper process, speaks over file descriptor 0.

Frames both ways: u32 length, then that many bytes (little-endian). A request is u32 length of a header, the header as
JSON, then the body of the client's request as it came. An answer is a status byte; behind OK, a u32 count of breaks,
a u32 offset each, and the text; behind anything else, a message. The first frame is an answer without a request: the
helper is there.
"""
import datetime
import json
import random
import re
import resource
import socket
import struct
import sys

OK, BAD_REQUEST, BAD_TEMPLATE, TOO_LARGE, NO_JINJA = range(5)
RESERVED = ("messages", "tools", "documents", "add_generation_prompt")
PRIVATE_PLANE = (0xF0000, 0x10FFFD)
# A name that a template may look up or compare with. No control token is made of it alone, but where a vocabulary has
# plain words for such.
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "model", "ipython"))
HALF_A_PAIR = re.compile("[\ud800-\udfff]")

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
    from jinja2 import nodes
except ImportError as error:
    jinja2 = None
    import_error = str(error)


class RequestError(Exception):
    """The request does not fit; the message is for the client."""


class SizeError(Exception):
    """The rendered prompt passes the limit."""


if jinja2:
    class Generation(jinja2.ext.Extension):
        """{% generation %} marks the model's own words for training; here it is only its body."""

        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(form):
    return datetime.datetime.now().strftime(form)


def make_environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def is_content(node, names):
    """Whether an expression is a message's content, perhaps behind filters or under another name."""
    if isinstance(node, (nodes.Filter, nodes.Test)):
        return node.node is not None and is_content(node.node, names)
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Const):
            return node.arg.value == "content"
        return isinstance(node.arg, nodes.Slice) and is_content(node.node, names)
    return False


def goes_through_lists(env, source):
    """Whether the template loops over content: then lists of parts reach it as they are."""
    tree = env.parse(source)
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and is_content(assign.node, names):
            names.add(assign.target.name)
    return any(is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def words_of(env, source):
    """The plain words that a template names: what it may look up in the client's objects, or compare with."""
    tree = env.parse(source)
    found = {node.attr for node in tree.find_all(nodes.Getattr)} | {node.name for node in tree.find_all(nodes.Name)}
    found |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return {word for word in found if WORD.fullmatch(word)}


class LoadError(Exception):
    """A template that is none; the text names its file."""


class Loaded:
    """A model's templates, compiled, and what belongs to them."""

    def __init__(self, header):
        self.env = make_environment()
        self.sources = header["templates"]
        self.templates, self.takes_lists, self.words = {}, {}, set(ROLES)
        for name, text in self.sources.items():
            try:
                self.templates[name] = self.env.from_string(text)
                self.takes_lists[name] = goes_through_lists(self.env, text)
                self.words |= words_of(self.env, text)
            except Exception as error:
                raise LoadError(f'{header["files"][name]}: chat template "{name}": {explain(error)}') from error
        self.variables = header["variables"]
        self.limit = header["limit_bytes"]
        self.specials = sorted((s for s in header["specials"] if s), key=len, reverse=True)
        self.special = re.compile("|".join(re.escape(s) for s in self.specials)) if self.specials else None
        self.beginnings = {s[:n] for s in self.specials for n in range(1, len(s))}
        self.longest = max((len(s) for s in self.specials), default=0)

    def pick(self, tools):
        if tools is not None and "tool_use" in self.templates:
            return "tool_use"
        return "default" if "default" in self.templates else next(iter(self.templates))


class Marker:
    """Breaks up what reads like a control token in the client's strings, with a code point that occurs nowhere."""

    def __init__(self, loaded, values):
        self.loaded = loaded
        self.strings = []
        self.collect(values)
        draw = random.SystemRandom()
        while True:
            code = draw.randint(*PRIVATE_PLANE)
            self.mark = chr(code)
            # What json.dumps with ensure_ascii makes of it.
            self.escaped = json.dumps(self.mark)[1:-1]
            if not any(self.mark in s or self.escaped in s for s in self.strings):
                break

    def collect(self, value):
        if isinstance(value, str):
            self.strings.append(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                self.strings.append(key)
                self.collect(item)
        elif isinstance(value, list):
            for item in value:
                self.collect(item)

    def guard(self, value):
        if isinstance(value, str):
            return self.guard_string(value)
        if isinstance(value, dict):
            return {self.guard_name(k): self.guard_name(v) if self.is_name(k, v) else self.guard(v)
                    for k, v in value.items()}
        if isinstance(value, list):
            return [self.guard(item) for item in value]
        return value

    @staticmethod
    def is_name(key, value):
        """Whether a value is one that templates compare with."""
        return key in ("role", "type") and isinstance(value, str)

    def guard_name(self, text):
        """Of keys and roles what the template names stays: with a mark in it, it would be another one."""
        return text if text in self.loaded.words else self.guard_string(text)

    def guard_string(self, text):
        loaded = self.loaded
        if loaded.special is None:
            return text
        # The beginning of a control token at the end, where a template may put another string behind it.
        tail = len(text.rstrip())
        for n in range(min(loaded.longest - 1, tail), 0, -1):
            if text[tail - n:tail] in loaded.beginnings:
                text = text[:tail] + self.mark + text[tail:]
                break
        # Behind its first character: that one is the client's, so no control token holds it.
        out, at = [], 0
        while (match := loaded.special.search(text, at)) is not None:
            out += [text[at:match.start() + 1], self.mark]
            at = match.start() + 1
        return "".join(out) + text[at:] if out else text

    def reveal(self, text):
        """The text without marks, as bytes, and the byte offsets where they stood."""
        if self.escaped in text:
            text = text.replace(self.escaped, self.mark)
        parts = [part.encode("utf-8") for part in text.split(self.mark)]
        breaks, at = [], 0
        for part in parts[:-1]:
            at += len(part)
            breaks.append(at)
        return b"".join(parts), breaks


def parse_json(raw, what):
    def refuse(name):
        raise RequestError(f"{what}: {name} is not JSON")

    try:
        return json.loads(raw, parse_constant=refuse)
    except RecursionError:
        raise RequestError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"{what} is not JSON: {error}") from None


def take_object(value, what):
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be an object")
    return value


def join_parts(parts, where):
    texts = []
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise RequestError(f"{where}.content[{i}]: parts of type {json.dumps(kind)} are not supported, "
                               'only {"type": "text", "text": "..."}')
    return texts


def prepare_message(message, where, takes_lists):
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise RequestError(f"{where} must be an object with a string role")
    if isinstance(message.get("content"), list):
        texts = join_parts(message["content"], where)
        message["content"] = [{"type": "text", "text": t} for t in texts] if takes_lists else "\n".join(texts)
    elif not isinstance(message.get("content"), (str, type(None))):
        raise RequestError(f"{where}.content must be a string, null or a list of parts")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls must be a list")
    for i, call in enumerate(calls or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise RequestError(f"{where}.tool_calls[{i}].function must be an object")
        # Templates want the object that the string spells; a string that is no JSON stays what it is.
        if isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except (ValueError, RecursionError):
                pass
    return message


def render(loaded, header, raw):
    body = take_object(parse_json(raw, "the request"), "the request")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message")
    tools = body.get("tools") or None
    if tools is not None and not isinstance(tools, list):
        raise RequestError("tools must be a list")
    name = loaded.pick(tools)
    for i, message in enumerate(messages):
        prepare_message(message, f"messages[{i}]", loaded.takes_lists[name])
    kwargs = take_object(body.get("chat_template_kwargs"), "chat_template_kwargs")
    for key in kwargs:
        if key in RESERVED:
            raise RequestError(f"chat_template_kwargs must not hold {key}")

    client = {"messages": messages, "tools": tools, "documents": body.get("documents"), "kwargs": kwargs}
    marker = Marker(loaded, [client, list(loaded.sources.values())])
    client = {key: marker.guard(value) for key, value in client.items()}
    kwargs = client.pop("kwargs")
    variables = {**loaded.variables, **header.get("kwargs", {}), **kwargs, **client}
    variables["add_generation_prompt"] = header["add_generation_prompt"]

    parts, size = [], 0
    for part in loaded.templates[name].generate(variables):
        size += len(part)
        if size > loaded.limit:
            raise SizeError()
        parts.append(part)
    try:
        text, breaks = marker.reveal("".join(parts))
    except UnicodeEncodeError:
        whose = "the messages hold" if any(map(HALF_A_PAIR.search, marker.strings)) else "chat template: it makes"
        raise RequestError(f"{whose} half of a surrogate pair (a \\ud800 to \\udfff alone): a character was cut in "
                           "two") from None
    if len(text) > loaded.limit:
        raise SizeError()
    return struct.pack(f"<BI{len(breaks)}I", OK, len(breaks), *breaks) + text


def explain(error):
    text = str(error)
    if isinstance(error, jinja2.exceptions.TemplateSyntaxError):
        return f"line {error.lineno}: {text}"
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}"  # its line is one of the code that jinja2 made
    if type(error) is jinja2.exceptions.TemplateError:
        return text  # what raise_exception says is meant for the one who asked
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def failure(status, text):
    return bytes([status]) + text.encode("utf-8", "replace")[:400]


def serve(loaded, header, raw):
    """One request: the state that is loaded afterwards, and the answer."""
    if header["op"] == "load":
        try:
            return Loaded(header), struct.pack("<BI", OK, 0)
        except LoadError as error:
            return loaded, failure(BAD_TEMPLATE, str(error))
        except Exception as error:
            return loaded, failure(BAD_TEMPLATE, f"chat template: {explain(error)}")
    try:
        return loaded, render(loaded, header, raw)
    except RequestError as error:
        return loaded, failure(BAD_REQUEST, str(error))
    except SizeError:
        return loaded, failure(TOO_LARGE, f"the prompt is larger than {loaded.limit} bytes")
    except MemoryError:
        return loaded, failure(BAD_REQUEST, "chat template: out of memory")
    except Exception as error:
        return loaded, failure(BAD_REQUEST, f"chat template: {explain(error)}")


def receive(link, n):
    data = bytearray(n)
    view, at = memoryview(data), 0
    while at < n:
        got = link.recv_into(view[at:])
        if got == 0:
            sys.exit(0)  # the other end is gone
        at += got
    return bytes(data)


def allow_cpu(seconds):
    """The limit counts from the start of the process, so it moves on with each request."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def send(link, answer):
    link.sendall(struct.pack("<I", len(answer)))
    link.sendall(answer)


def main():
    link = socket.socket(fileno=0)
    loaded = None
    send(link, failure(NO_JINJA, import_error) if not jinja2 else bytes([OK]))
    while True:
        frame = receive(link, struct.unpack("<I", receive(link, 4))[0])
        n = struct.unpack_from("<I", frame)[0]
        header = json.loads(frame[4:4 + n])
        allow_cpu(header["cpu_s"])
        loaded, answer = serve(loaded, header, frame[4 + n:])
        send(link, answer)


main()
