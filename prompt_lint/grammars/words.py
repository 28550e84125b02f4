"""Words under which dynamic text is printed: memory, retrieval, examples, users, roles; several languages."""

from __future__ import annotations

import re

_I = re.IGNORECASE

MEMORY = re.compile(
    r"memor(?:y|ies)|remember|recall(?:ed)?|(?:known|learned|facts?|notes?|what (?:you|we|"
    r"i) know) about|user (?:facts|preferences|notes)|preferences|long[- ]term|"
    r"mem0|\bprofile\b|user_profile|past (?:conversations|interactions)|episodic|zettelkasten|erinnerung|gedächtnis|"
    r"bekannt über|mémoire|souvenir|préférences|recuerdo|memoria|preferencias|"
    r"lembranças|preferências|记忆|回忆|偏好|記憶|メモリ|思い出|память|воспоминан|기억",
    _I,
)
RETRIEVED = re.compile(
    r"<\s*(?:context|documents?|docs?|sources?|passages?|search[_-]?results?|retrieved[\w-]*|"
    r"knowledge|chunks?|excerpts?|results?|references?|snippets?|evidence|kontext|contexte|contexto)\b"
    r"|\b(?:chunk|passage|excerpt|snippet|document|doc|source|result|hit|article|fragment|auszug|"
    r"abschnitt|extrait|fragmento|trecho)\s*(?:#|no\.?|nr\.?)?\s*\[?\d+\]?"
    r"|\b(?:retrieved|relevant|search results?|knowledge base|related (?:documents|articles|passages)|"
    r"from the (?:wiki|docs|manual)|sources?:|context:|gefundene|suchergebnis|"
    r"résultats de recherche|resultados de búsqueda|relevante[sn]?|similarity|score[:=])\b"
    r"|^\s*\[\d+\]|检索|搜索结果|参考资料|文档|検索結果|資料|контекст|документ|результаты поиска",
    _I | re.MULTILINE,
)
EXAMPLE = re.compile(
    r"^\W{0,4}(?:<\s*example\b|(?:example|sample|demonstration|demo|shot|case|beispiel|exemple|"
    r"ejemplo|exemplo|esempio|例|示例|サンプル|пример)s?\s*(?:#|no\.?|nr\.?)?\s*\d*\s*[:.)>-]"
    r"|(?:q|question|input|user|human|frage|pregunta|问题|问|質問|вопрос)\s*\d*\s*[:>])",
    _I | re.MULTILINE,
)
USER_FIELD = re.compile(
    r"\b(?:customer|client|user(?: ?name)?|tenant|account|name|e-?mail|locale|language|plan|tier|"
    r"company|organi[sz]ation|org|team|role|country|region|city|time ?zone|phone|member|guest|"
    r"patient|student|employee|subscriber|buyer|seller|age|birthday|gender|title|department|workspace|persona|profile|"
    r"kunde|kundin|nutzer|benutzer|firma|mandant|konto|sprache|utilisateur|langue|entreprise|nom|"
    r"prénom|cliente|usuario|idioma|empresa|nombre|usuário|nome|utente|"
    r"客户|用户|姓名|公司|语言|顧客|ユーザー|氏名|会社|клиент|пользователь|имя|компания|고객|사용자|이름)"
    r"(?:[ _-](?:name|id|"
    r"e?mail|locale|profile|plan|tier|country|language|type|number|no|nr))?"
    r"['’]?s?[\"']?\s*(?::|=|\bis\b|\bnamed\b|\bcalled\b|ist|heißt|est|s'appelle|es|se llama|é|：|\">|>)",
    _I,
)
ADDRESSED = re.compile(
    r"\b(?:you(?:'re| are) (?:talking|speaking|chatting|helping|assisting|serving|working)|(?:assist|"
    r"help|serve|talking to|speaking with|chatting with|on behalf of|for the (?:user|customer|client)))\b"
    r"|^\W{0,3}(?:hello|hi|hey|dear|welcome(?: back)?|greetings|good (?:morning|afternoon|evening)|hallo|guten tag|"
    r"liebe[r]?|bonjour|salut|chère?|hola|buenos días|querid[oa]|olá|oi|ciao|buongiorno|привет|здравствуйте)[ ,]"
    r"|\bdu (?:sprichst|hilfst|arbeitest) (?:mit|für)?|\bvous (?:aidez|parlez)|\bhablas con|\bayudas a",
    _I,
)
ROLE = re.compile(
    r"\b(?:you(?:'re| are)|act as|your (?:role|name|job|persona|task) is|role:|agent:|persona:|mode:|"
    r"du bist|sie sind|tu es|vous êtes|eres|usted es|você é|sei|ты|вы)(?:\s|$)|你是|您是|あなたは",
    _I,
)
REMINDER = re.compile(
    r"<\s*/?\s*(?:[\w-]*reminder|system[\w-]*|note|notice|hint|instructions?|attachment|env[\w-]*|"
    r"context|ide[\w-]*|meta)\b|\b(?:reminder|note|hinweis|rappel|recordatorio|lembrete)\b\s*[:>]",
    _I,
)
SUMMARY = re.compile(
    r"\b(?:summary|summari[sz]|compact|conversation so far|previous conversation|zusammenfassung|"
    r"résumé|resumen|resumo|摘要|总结|要約|сводк)",
    _I,
)
PLACEHOLDER = re.compile(
    r"^\W{0,3}(?:\w+ ){0,6}(?:removed|cleared|omitted|truncated|elided|pruned|deleted|trimmed|hidden|"
    r"redacted|collapsed|dropped|snipped|shortened|compacted|no longer|not shown|expired|"
    r"entfernt|gekürzt|gelöscht|ausgelassen|supprimé|tronqué|omis|eliminado|truncado|omitido|removido|"
    r"已删除|已省略|已清除|省略|削除|удалено|сокращено|удалён)",
    _I,
)
