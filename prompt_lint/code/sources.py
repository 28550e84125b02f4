"""Calls that bring a tracked origin, and calls that clear one; for Python and TypeScript."""

from __future__ import annotations

import re
from functools import lru_cache

from . import ir
from .values import Kind

_CLOCK = re.compile(
    r"(?:^|\.)(?:datetime\.)?(?:datetime|DateTime|pendulum|arrow|dayjs|moment|dt)\.(?:now|utcnow|local|utc)$"
    r"|^(?:time\.(?:time|monotonic|perf_counter|ctime|asctime|localtime|gmtime|strftime)(?:_ns)?|timezone\.now|"
    r"timezone\.localtime)$"
    r"|^(?:Date\.now|performance\.now|dayjs|moment|DateTime\.local|new Date|Temporal\.Now\.\w+)$"
    r"|(?:^|\.)(?:utcnow|localtime|get_current_time|getCurrentTime|current_timestamp)$"
)
_DATE = re.compile(r"(?:^|\.)date\.today$|(?:^|\.)(?:datetime\.)?today$|(?:^|\.)(?:get_today|getToday|today_str)$")
_RANDOM_ID = re.compile(
    r"(?:^|\.)(?:uuid(?:v?[124678])?|uuid\.v[124678]|randomUUID|nanoid|ulid|new_ulid|cuid2?|"
    r"token_hex|token_urlsafe|token_bytes|randbytes|objectid|ObjectId|getpid|ksuid|mkdtemp|mkdtempSync|mktemp|"
    r"NamedTemporaryFile|TemporaryDirectory)$"
    r"|^(?:secrets\.\w+|random\.(?:random|randint|randrange|getrandbits|uniform)|Math\.random|"
    r"os\.urandom|crypto\.randomBytes|shortuuid\.\w+)$"
)
_SAMPLE = re.compile(
    r"(?:^|\.)(?:random|_?rng|\w*_rng)\.(?:sample|choices?|shuffle|permutation)$|"
    r"^_?\.?(?:sampleSize|shuffle)$|(?:^|\.)(?:sampleSize)$"
)
_LISTING = re.compile(
    r"^(?:os\.(?:listdir|scandir|walk)|glob\.i?glob|glob\.sync|fs\.readdirSync|fs\.readdir|"
    r"fs\.promises\.readdir|readdir|readdirSync|fsp\.readdir|listdir)$|\.(?:iterdir|rglob|glob)$"
)
_COMPLETION = re.compile(r"(?:^|\.)(?:as_completed|imap_unordered)$")
_FIXED = re.compile(
    r"(?:^|\.)(?:getcwd|cwd|gethostname|getuser|getlogin|homedir|hostname)$|^(?:platform\.\w+|"
    r"os\.uname|os\.platform|os\.getenv|os\.environ\.get|socket\.getfqdn|Path\.home)$"
)
_LIVE = re.compile(
    r"(?:^|\.)(?:subprocess\.(?:run|check_output|getoutput|Popen)|check_output|getoutput|execSync|"
    r"execFileSync|spawnSync|exec)$"
)
_PSUTIL = re.compile(
    r"^(?:psutil\.(?:cpu|virtual|disk|sensors|net|pids|process)\w*|os\.loadavg|os\.freemem|os\.uptime|"
    r"shutil\.disk_usage|os\.getloadavg)$"
)
_GIT = re.compile(r"\bgit\b|\btree\b|\bls\b|\bdiff\b|\bstatus\b")
_RETRIEVED = re.compile(
    r"(?:^|\.)_?(?:\w*retriev\w*|\w*vector_?\w*|vectorStore|vectordb|collection|kb|knowledge\w*|"
    r"search_client|searcher|rag\w*|chroma|pinecone|qdrant|faiss|weaviate|index)"
    r"\.(?:a?invoke|a?search|a?query|a?retrieve|similarity_search\w*|similaritySearch\w*|"
    r"get_relevant_documents|getRelevantDocuments|as_retriever)$"
    r"|(?:^|\.)(?:a?similarity_search\w*|similaritySearch\w*|a?get_relevant_documents|"
    r"getRelevantDocuments|retrieve_(?:chunks|docs|documents|context|passages)\w*"
    r"|search_(?:docs|documents|chunks|knowledge\w*)|searchDocs|searchDocuments|retrieveContext|"
    r"retrieveDocs|retrieveChunks|fetchContext)$"
)
_MEMORY = re.compile(
    r"(?:^|\.)_?(?:mem|memory|memories|mem0|\w*_memory|\w*Memory|\w*_memories|long_term|memory_?store|"
    r"memoryStore|memory_client|memoryClient)"
    r"\.(?:a?search|recall|get_all|getAll|retrieve|load_memory_variables|loadMemoryVariables|query|"
    r"relevant|lookup|fetch|get_relevant\w*|getRelevant\w*|search_memories|find)$"
    r"|(?:^|\.)(?:recall_memor\w+|search_memor\w+|load_memor\w+|get_memories|getMemories|"
    r"searchMemor\w+|recallMemor\w+|loadMemor\w+|fetch_memor\w+|retrieve_memor\w+)$"
)
_SIGNED = re.compile(
    r"(?:^|\.)(?:generate_presigned_url|generate_signed_url|getSignedUrl|generate_blob_sas|"
    r"createPresignedUrl|presigned_get_object|get_presigned_url|create_signed_url|createSignedUrl|sign_url)$"
)
_TEMPLATED = re.compile(r"(?:^|\.)apply_chat_template$")

_TABLE: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (_DATE, Kind.DATE),
    (_CLOCK, Kind.CLOCK),
    (_RANDOM_ID, Kind.RANDOM_ID),
    (_LISTING, Kind.LISTING),
    (_COMPLETION, Kind.COMPLETION),
    (_PSUTIL, Kind.ENVIRONMENT),
    (_FIXED, Kind.FIXED_ENVIRONMENT),
    (_MEMORY, Kind.MEMORY),
    (_RETRIEVED, Kind.RETRIEVED),
    (_SIGNED, Kind.SIGNED_URL),
    (_TEMPLATED, Kind.RENDERED),
)

MESSAGES_LIKE = re.compile(
    r"^_?(?:\w*_)?(?:history|messages?|msgs?|turns|conversation|chat(?:_?log|History)?|dialog(?:ue)?|"
    r"context_messages|transcript|\w*History|\w*Messages)$"
)
USER_LIKE = re.compile(
    r"^(?:\w*_)?(?:user|customer|tenant|client_profile|user_?profile|profile|account|member|patient|"
    r"student|persona_data|employee)$"
)
USER_FIELD = re.compile(
    r"^(?:user|customer|client|tenant|account|member|patient|student|employee)_?(?:name|id|email|"
    r"profile|info|locale|language|data|context)$",
    re.IGNORECASE,
)
FUNCTION_LIKE = re.compile(r"^(?:fn|func|function|callable|callback|handler|method|cls)$")
_OF_ADDRESS = {"id", "hash"}  # Python's own: addresses, and hashes that differ in each process
_RANDOM_NUMBER = re.compile(r"(?:^|\.)(?:random|randint|randrange|uniform|integers|Math\.random)$")
_SEEDED = {"Random", "default_rng", "RandomState", "seedrandom", "PRNGKey", "Generator"}
_ALPHABET = re.compile(
    r"^(?:string\.)?(?:ascii_\w+|digits|hexdigits|printable)$|alphabet|charset|letters|chars$", re.IGNORECASE
)


def aliased(node: ir.Node) -> str | None:
    """The function that a name stands for: `clock = datetime.now`, `const sh = promisify(exec)`."""
    if isinstance(node, ir.Call) and ir.dotted(node.func).endswith("promisify") and len(node.args) == 1:
        node = node.args[0]
    name = ir.dotted(node) if isinstance(node, ir.Name | ir.Attr) else ""
    return name if name and _kind_of_name(name) is not None else None


def is_of_address(name: str, imports: dict[str, str]) -> bool:
    """`id(x)`, `hash(x)`, where nothing else has these names."""
    return name in _OF_ADDRESS and name not in imports


def kind_of_call(name: str, call: ir.Call, imports: dict[str, str]) -> Kind | None:
    """The origin that a call brings, or None."""
    head, _, rest = name.partition(".")
    origin = imports.get(head)
    found = _kind_of_name(name)
    if found is None and origin:
        found = _kind_of_name(f"{origin}.{rest}" if rest else origin)
    if found is Kind.ENVIRONMENT and not _PSUTIL.search(name):
        return found if _runs_git(call) else None
    return found


@lru_cache(maxsize=8192)
def _kind_of_name(name: str) -> Kind | None:
    for pattern, kind in _TABLE:
        if pattern.search(name):
            return kind
    if _SAMPLE.search(name):
        return Kind.SAMPLED
    return Kind.ENVIRONMENT if _LIVE.search(name) else None


def _runs_git(call: ir.Call) -> bool:
    words = " ".join(_texts(call))
    return bool(_GIT.search(words))


def _texts(node: ir.Node) -> list[str]:
    if isinstance(node, ir.Const):
        return [node.text] if node.text else []
    if isinstance(node, ir.Seq):
        return [t for item in node.items for t in _texts(item)]
    if isinstance(node, ir.Call):
        return [t for item in node.args for t in _texts(item)]
    if isinstance(node, ir.Concat):
        return [t for item in node.parts for t in _texts(item)]
    return []


_TIME_CODES = re.compile(r"%-?[HIMSpfsTRrXc]|[Hh]{1,2}[:.]?mm|ss\b|LTS?\b|LLL|hour|minute|second")
_DATE_METHODS = {"date", "toLocaleDateString", "toDateString", "toordinal", "isocalendar"}
_DATE_PARTS = {"year", "month", "day", "getFullYear", "getMonth", "getDate"}


def refined_clock(method: str, call: ir.Call | None) -> Kind | None:
    """What a method or attribute makes of a clock value: DATE, CLOCK, or None for unchanged."""
    if method in _DATE_METHODS or method in _DATE_PARTS:
        return Kind.DATE
    if method == "split" and call and call.args and isinstance(call.args[0], ir.Const) and call.args[0].text == "T":
        return Kind.DATE
    if method in ("strftime", "format", "toFormat", "formatted", "isoformat") and call and call.args:
        return _of_format(call.args)
    return None


def _of_format(args: list[ir.Node]) -> Kind | None:
    """What a format prints of a clock: `now.format("HH:mm")`, `format(new Date(), "yyyy-MM-dd")`."""
    spec = next((a.text for a in args if isinstance(a, ir.Const) and a.text), None)
    if spec is not None:
        return Kind.CLOCK if _TIME_CODES.search(spec) else Kind.DATE
    named = [ir.dotted(a).lower() for a in args if not isinstance(a, ir.Call)]
    return Kind.DATE if any("date" in name for name in named) else None


def is_random_number(node: ir.Node) -> bool:
    """`random.randrange(9)`, `Math.random()`: a number, and what is picked or sorted by it is drawn."""
    return isinstance(node, ir.Call) and bool(_RANDOM_NUMBER.search(ir.dotted(node.func)))


def draws_several(node: ir.Node) -> bool:
    """`random.sample(pool, 3)`, a shuffle: examples, where `random.choice` may draw one question."""
    return not (isinstance(node, ir.Call) and ir.dotted(node.func).endswith(".choice"))


def draws_characters(call: ir.Call) -> bool:
    """`random.choices(string.ascii_letters, k=8)`: an id is drawn, not examples."""
    first = call.args[0] if call.args else None
    if isinstance(first, ir.Sum):
        first = first.left
    return isinstance(first, ir.Const) or bool(first and _ALPHABET.search(ir.dotted(first)))


def is_seeded_generator(node: ir.Node) -> bool:
    """`random.Random(7)`: a generator that gives the same values each time."""
    return isinstance(node, ir.Call) and bool(node.args) and ir.dotted(node.func).rsplit(".", 1)[-1] in _SEEDED


def is_bounded_window(node: ir.Node, target: str) -> bool:
    """`history = deque(maxlen=20)`: the oldest messages fall out by themselves."""
    bounded = isinstance(node, ir.Call) and "maxlen" in node.kwargs and ir.dotted(node.func).endswith("deque")
    return bounded and bool(MESSAGES_LIKE.match(target.rsplit(".", 1)[-1]))


def has_time(spec: str) -> bool:
    """True when a format prints something below a day."""
    return bool(_TIME_CODES.search(spec))
