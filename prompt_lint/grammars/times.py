"""Clock values and dates, in the forms that people and libraries print."""

from __future__ import annotations

import re

from .spans import Span, both_at, is_near

_ABBREVIATIONS = (
    "jan feb mar apr may jun jul aug sep sept oct nov dec mai okt dez mär mrz "
    "ene abr ago dic fev set out janv févr avr juil août déc"
)
_MONTHS = (
    "january february march april may june july august september october november december "
    "januar februar märz april mai juni juli august september oktober november dezember "
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre "
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre "
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre "
    "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro "
    "januari februari maart mei augustus "
    "января февраля марта апреля мая июня июля августа сентября октября ноября декабря"
)
_DAYS = (
    "monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun "
    "montag dienstag mittwoch donnerstag freitag samstag sonntag mo di mi do fr sa so "
    "lundi mardi mercredi jeudi vendredi samedi dimanche "
    "lunes martes miércoles jueves viernes sábado domingo "
    "lunedì martedì mercoledì giovedì venerdì sabato domenica "
    "segunda-feira terça-feira quarta-feira quinta-feira sexta-feira "
    "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag "
    "понедельник вторник среда четверг пятница суббота воскресенье"
)


def _any(words: str) -> str:
    return "(?:" + "|".join(sorted(set(words.split()), key=len, reverse=True)) + ")"


_MONTH = f"(?:{_any(_MONTHS)}|{_any(_ABBREVIATIONS)})\\b\\.?"
_DAY_NAME = f"{_any(_DAYS)}\\b\\.?"
_YEAR = r"(?:19|20)\d\d"
_ANY_YEAR = rf"(?:{_YEAR}|25[5-9]\d|1[34]\d\d)"  # also of the Buddhist and the Persian calendar
_WORD = (
    r"[^\W\d_][^\s\d,;:/_]{1,14}"  # a month in a language that is not listed, where a day and a year stand around it
)
_DAY_NUMBER = r"\d{1,2}(?:st|nd|rd|th|er|\.|º)?"

_DATE = "|".join(
    (
        rf"\b{_ANY_YEAR}[-/.](?:0?[1-9]|1[0-2])[-/.](?:[012]?\d|3[01])\b",
        rf"\b(?:[012]?\d|3[01])[-/.](?:0?[1-9]|1[0-2])[-/.]{_ANY_YEAR}\b",
        r"\b(?:0[1-9]|[12]\d|3[01])\.(?:0[1-9]|1[0-2])\.\d\d\b(?!\.\d)",
        rf"\b(?:0?[1-9]|1[0-2])/(?:[012]?\d|3[01])/(?:{_YEAR}|\d\d)\b",
        rf"\b{_DAY_NUMBER} (?:de |of )?{_MONTH}(?:,? (?:de |of )?{_YEAR})?",
        rf"\b{_MONTH} {_DAY_NUMBER}(?:,? {_YEAR}\b)?",
        rf"\b{_DAY_NUMBER} {_WORD},? {_ANY_YEAR}\b",
        rf"\bngày \d{{1,2}} tháng \d{{1,2}}(?: năm {_YEAR})?",
        rf"\b{_YEAR}年\d{{1,2}}月\d{{1,2}}日",
        r"\d{1,2}月\d{1,2}日",
        rf"{_YEAR}년 ?\d{{1,2}}월 ?\d{{1,2}}일",
        rf"\b{_YEAR}(?:0[1-9]|1[0-2])(?:[012]\d|3[01])\b",
        rf"\b{_YEAR}-W\d\d(?:-\d)?\b",
        rf"\b{_YEAR}-\d{{3}}\b",
        rf"\bQ[1-4][ /-]?(?:FY ?)?{_YEAR}\b|\b{_YEAR}[ /-]?Q[1-4]\b",
        rf"\b(?:calendar week|ISO week|KW) ?\d{{1,2}}\b|\bweek \d{{1,2}},? (?:of )?{_YEAR}\b",
        r"[星礼]期[一二三四五六日天]|[月火水木金土日]曜日?",
    )
)
_CLOCK = "|".join(
    (
        r"(?<!\d\.)\b(?:[01]?\d|2[0-3]):[0-5]\d(?!\d)(?::[0-6]\d)?(?:[.,]\d+)?(?: ?[ap]\.?m\.?\b)?",
        r"\b(?:0?\d|1[0-2]) ?(?:[ap]\.m\.|[ap]m\b)",
        r"\b(?:[01]?\d|2[0-3]) ?(?:uhr|h|heures|часов|giờ)(?: ?[0-5]\d)?(?: ?(?:min|minutes|phút|минут))?\b",
        r"(?:午前|午後|上午|下午)? ?\d{1,2}[点時时](?:\d{1,2}分?)?(?:\d{1,2}秒)?",
        r"(?:오전|오후) ?\d{1,2}시(?: ?\d{1,2}분)?",
    )
)
# Only behind a date, or behind a word that says so.
_DOTTED_CLOCK = r"\b(?:(?:klo?|um|ore|kell)\.? (?:[01]?\d|2[0-3])|[01]\d|2[0-3])\.[0-5]\d(?:\.[0-6]\d)?\b"
_ZONE = r"(?: ?(?:Z|UTC|GMT|[A-Z]{3,4}|[+-]\d\d:?\d\d)\b)?"
_GLUE = r"(?:[T ,@]|,? (?:a las |[^\W\d_]{1,5}\.? )?| - | \()?"
_WITH_DAY = rf"(?:\b{_DAY_NAME},? ?(?:den |the |le |el )?)?"

_FLAGS = re.IGNORECASE
DATE_TIME = re.compile(rf"{_WITH_DAY}(?:{_DATE}){_GLUE}(?:{_CLOCK}|{_DOTTED_CLOCK}){_ZONE}", _FLAGS)
# Letters and digits are both word characters to \\b: between the day and the hour of these there is no such edge.
ISO_STAMP = re.compile(
    rf"\b{_ANY_YEAR}-(?:0[1-9]|1[0-2])-(?:[012]\d|3[01])[T_](?:[01]\d|2[0-3])[:.-]?[0-5]\d"
    r"(?:[:.-]?[0-6]\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?(?!\d)",
    _FLAGS,
)
COMPACT_STAMP = re.compile(
    rf"\b{_YEAR}(?:0[1-9]|1[0-2])(?:[012]\d|3[01])[T_-]?(?:[01]\d|2[0-3])[0-5]\d(?:[0-5]\d)?Z?\b"
)
TIME_FIRST = re.compile(rf"(?:{_CLOCK}){_ZONE}{_GLUE}{_WITH_DAY}(?:{_DATE})", _FLAGS)
CLOCK = re.compile(rf"{_WITH_DAY}(?:{_CLOCK}){_ZONE}", _FLAGS)
ASCTIME = re.compile(rf"{_DAY_NAME} {_MONTH} +\d{{1,2}} \d\d:\d\d(?::\d\d)?(?: [A-Z]{{3,4}})? {_YEAR}", _FLAGS)
DATE = re.compile(rf"{_WITH_DAY}(?:{_DATE})", _FLAGS)
DAY_WORD = re.compile(rf"\b{_DAY_NAME}(?![\w-])", _FLAGS)
EPOCH = re.compile(r"(?<![\d.])1[5-9]\d{8}(?:\.\d+|\d{3}|\d{6}|\d{9})?(?![\d])")
AGO = re.compile(
    r"\b(?:\d+|an?|one|two|few|several) (?:seconds?|minutes?|mins?|hours?|days?|weeks?|Sekunden|"
    r"Minuten|Stunden|Tagen?) ago\b"
    r"|\bvor \d+ (?:Sekunden|Minuten|Stunden|Tagen)\b|\bil y a \d+ (?:secondes?|minutes?|heures?|jours?)\b"
    r"|\bhace \d+ (?:segundos?|minutos?|horas?|días?)\b|\d+ ?(?:秒|分鐘|分钟|分|小时|時間|天|日)前",
    _FLAGS,
)
DAY_PART = re.compile(
    r"\b(?:good|this|in the|late|early|(?:time|part) of (?:the )?day\W{1,3}|guten?|am|bon(?:ne)?|buen[oa]s|bo[am])[ -]?"
    r"(?:morning|noon|afternoon|evening|night|morgen|vormittag|mittag|nachmittag|abend|nacht|jour|journée|matin|"
    r"après-midi|soir(?:ée)?|nuit|días|tardes?|noches?|mañana|dia|manhã|noites?)\b",
    _FLAGS,
)
_HOUR_WORD = "(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|noon|midnight)"
SPOKEN = re.compile(
    rf"\b(?:an? )?(?:quarter|half|five|ten|twenty(?:[- ]five)?)(?: minutes)? (?:past|to|after|before) {_HOUR_WORD}\b"
    rf"|\b{_HOUR_WORD} o['’]clock\b",
    _FLAGS,
)

_WORDED = (AGO, DAY_PART, SPOKEN)
_STAMPS = (ISO_STAMP, ASCTIME, DATE_TIME, TIME_FIRST, COMPACT_STAMP, CLOCK)
_DIGIT = re.compile(r"\d")  # each of these stamps has one
_OF_DATES = re.compile(r"[\d期月火水木金土日]")  # each date has one of these


def timestamps_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    """Two clock values below day precision in the slot where the texts part, or None."""
    if not is_near(_DIGIT, was, position):
        return _first_of(_WORDED, was, now, position)
    return _first_of((*_STAMPS, *_WORDED), was, now, position) or _epochs_at(was, now, position)


def _first_of(patterns: tuple[re.Pattern[str], ...], was: str, now: str, position: int) -> tuple[Span, Span] | None:
    for pattern in patterns:
        found = both_at(pattern, was, now, position)
        if found:
            return found
    return None


def _epochs_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    found = both_at(EPOCH, was, now, position)
    if not found or len(found[0].text) != len(found[1].text):
        return found if found and "." in found[0].text + found[1].text else None
    scale = 10 ** max(0, len(found[0].text.split(".")[0]) - 10)
    a, b = (float(span.text) / scale for span in found)
    return found if abs(a - b) < 60 * 86400 else None


def dates_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    """Two dates of day precision in the slot where the texts part, or None."""
    found = both_at(DATE, was, now, position) if is_near(_OF_DATES, was, position) else None
    return found or both_at(DAY_WORD, was, now, position)
